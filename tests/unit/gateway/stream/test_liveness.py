from __future__ import annotations

import pytest

from gateway.stream.liveness import Liveness

pytestmark = pytest.mark.unit


def a_liveness() -> Liveness:
    return Liveness(ping_interval_s=10.0, pong_timeout_s=20.0, now=100.0)


def test_a_ping_is_due_every_interval_once_the_last_was_answered() -> None:
    liveness = a_liveness()
    assert liveness.next_ping(109.9) is None
    assert liveness.next_ping(110.0) == 110e6
    assert liveness.next_ping(120.0) is None
    liveness.receive_pong(110e6)
    assert liveness.next_ping(120.0) == 120e6


def test_a_peer_that_does_not_answer_is_dead() -> None:
    liveness = a_liveness()
    liveness.next_ping(110.0)
    assert not liveness.is_dead(129.9)
    assert liveness.is_dead(130.0)


def test_only_the_answer_to_the_last_ping_counts() -> None:
    liveness = a_liveness()
    liveness.next_ping(110.0)
    liveness.receive_pong(1.0)
    assert liveness.is_dead(130.0)
    liveness.receive_pong(110e6)
    assert not liveness.is_dead(130.0)
