from __future__ import annotations

import pytest

from gateway.stream.ack_window import WINDOW_MESSAGES, AckWindow

pytestmark = pytest.mark.unit


def test_a_window_that_is_not_full_never_stalls() -> None:
    acks = AckWindow(10.0)
    for seq in range(WINDOW_MESSAGES - 1):
        acks.sent(seq, 1.0)
    assert acks.stalls_at is None


def test_a_full_window_stalls_after_the_deadline() -> None:
    acks = AckWindow(10.0)
    for seq in range(WINDOW_MESSAGES):
        acks.sent(seq, float(seq))
    assert acks.stalls_at == WINDOW_MESSAGES - 1 + 10.0
    acks.sent(99, 50.0)
    assert acks.stalls_at == WINDOW_MESSAGES - 1 + 10.0


def test_progress_starts_the_deadline_afresh() -> None:
    acks = AckWindow(10.0)
    for seq in range(WINDOW_MESSAGES + 4):
        acks.sent(seq, 0.0)
    acks.acknowledge(3, 7.0)
    assert acks.stalls_at == 17.0
    acks.acknowledge(4, 8.0)
    assert acks.stalls_at is None


def test_an_ack_without_progress_changes_nothing() -> None:
    acks = AckWindow(10.0)
    for seq in range(WINDOW_MESSAGES + 1):
        acks.sent(seq, 0.0)
    acks.acknowledge(0, 1.0)
    acks.acknowledge(0, 9.0)
    assert acks.stalls_at == 11.0


def test_what_was_acknowledged_ahead_does_not_fill_the_window() -> None:
    acks = AckWindow(10.0)
    acks.acknowledge(1000, 0.0)
    for seq in range(WINDOW_MESSAGES):
        acks.sent(seq, 0.0)
    assert acks.stalls_at is None
