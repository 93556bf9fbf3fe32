"""When and what a stream acknowledges."""

from __future__ import annotations

import pytest

from gateway.client.acks import AckTracker
from gateway.wire.messages import Ack

pytestmark = pytest.mark.unit


def test_ack_is_due_after_eight_results_and_starts_again() -> None:
    acks = AckTracker()
    for seq in range(7):
        acks.received(seq, 5.0)
    assert not acks.is_due(5.0)
    acks.received(9, 5.0)
    assert acks.is_due(5.0)
    assert acks.take(1) == Ack(stream=1, seq=9)
    assert not acks.is_due(5.0)
    assert acks.take(1) is None


def test_fewer_results_are_acknowledged_after_a_second() -> None:
    acks = AckTracker()
    assert not acks.is_due(100.0)
    acks.received(0, 5.0)
    acks.received(1, 5.9)
    assert not acks.is_due(5.9)
    assert acks.is_due(6.0)
    acks.take(1)
    acks.received(2, 6.5)
    assert not acks.is_due(7.0)


def test_ack_tells_what_the_program_took() -> None:
    acks = AckTracker()
    acks.received(4, 0.0)
    acks.rendered(3)
    assert acks.take(2) == Ack(stream=2, seq=4, rendered_seq=3)


def test_results_of_a_lost_connection_are_not_acknowledged() -> None:
    acks = AckTracker()
    acks.received(4, 0.0)
    acks.reset()
    assert acks.take(1) is None
