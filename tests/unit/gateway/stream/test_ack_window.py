from __future__ import annotations

import pytest

from gateway.stream.ack_window import WINDOW_MESSAGES, AckWindow, EventAcks

pytestmark = pytest.mark.unit

Acks = type[AckWindow | EventAcks]
BOTH = pytest.mark.parametrize("kind", [AckWindow, EventAcks])


@BOTH
def test_a_window_that_is_not_full_never_stalls(kind: Acks) -> None:
    acks = kind(10.0)
    for seq in range(WINDOW_MESSAGES - 1):
        acks.sent(seq, 1.0)
    assert acks.stalls_at is None


@BOTH
def test_a_full_window_stalls_after_the_deadline(kind: Acks) -> None:
    acks = kind(10.0)
    for seq in range(WINDOW_MESSAGES):
        acks.sent(seq, float(seq))
    assert acks.stalls_at == WINDOW_MESSAGES - 1 + 10.0
    acks.sent(99, 50.0)
    assert acks.stalls_at == WINDOW_MESSAGES - 1 + 10.0


@BOTH
def test_progress_starts_the_deadline_afresh(kind: Acks) -> None:
    acks = kind(10.0)
    for seq in range(WINDOW_MESSAGES + 4):
        acks.sent(seq, 0.0)
    acks.acknowledge(3, 7.0)
    assert acks.stalls_at == 17.0
    acks.acknowledge(4, 8.0)
    assert acks.stalls_at is None


@BOTH
def test_an_ack_without_progress_changes_nothing(kind: Acks) -> None:
    acks = kind(10.0)
    for seq in range(WINDOW_MESSAGES + 1):
        acks.sent(seq, 0.0)
    acks.acknowledge(0, 1.0)
    acks.acknowledge(0, 9.0)
    assert acks.stalls_at == 11.0


@BOTH
def test_what_was_acknowledged_ahead_does_not_fill_the_window(kind: Acks) -> None:
    acks = kind(10.0)
    acks.acknowledge(1000, 0.0)
    for seq in range(WINDOW_MESSAGES):
        acks.sent(seq, 0.0)
    assert acks.stalls_at is None
