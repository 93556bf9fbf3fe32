"""When and what a stream acknowledges."""

from __future__ import annotations

import pytest

from gateway.client.acks import AckTracker
from gateway.wire.messages import Ack

pytestmark = pytest.mark.unit


def test_ack_is_due_after_eight_results_and_starts_again() -> None:
    acks = AckTracker()
    for seq in range(7):
        acks.received(seq)
    assert not acks.is_due
    acks.received(9)
    assert acks.is_due
    assert acks.take(1) == Ack(stream=1, seq=9)
    assert not acks.is_due
    assert acks.take(1) is None


def test_ack_tells_what_the_program_took() -> None:
    acks = AckTracker()
    acks.received(4)
    acks.rendered(3)
    assert acks.take(2) == Ack(stream=2, seq=4, rendered_seq=3)


def test_results_of_a_lost_connection_are_not_acknowledged() -> None:
    acks = AckTracker()
    acks.received(4)
    acks.reset()
    assert acks.take(1) is None
