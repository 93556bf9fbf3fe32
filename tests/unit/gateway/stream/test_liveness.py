from __future__ import annotations

import pytest

from gateway.stream.liveness import FIRST_PINGS, Liveness

pytestmark = pytest.mark.unit


def a_liveness() -> Liveness:
    return Liveness(ping_interval_s=10.0, pong_timeout_s=20.0, now=100.0)


def answer(liveness: Liveness, now: float) -> float:
    """Take the ping that is due and answer it."""
    t = liveness.next_ping(now)
    assert t is not None
    assert liveness.receive_pong(t) == now
    return t


def test_the_first_pings_come_quickly_and_the_others_every_interval() -> None:
    liveness = a_liveness()
    assert liveness.next_ping(100.9) is None
    for number in range(1, FIRST_PINGS + 1):
        assert answer(liveness, 100.0 + number) == (100 + number) * 1e6
    assert liveness.next_ping(100.0 + FIRST_PINGS + 9.9) is None
    assert answer(liveness, 110.0 + FIRST_PINGS) == (110 + FIRST_PINGS) * 1e6


def test_there_is_one_ping_at_a_time() -> None:
    liveness = a_liveness()
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
    assert liveness.receive_pong(1.0) is None
    assert liveness.is_dead(130.0)
    liveness.receive_pong(110e6)
    assert not liveness.is_dead(130.0)
