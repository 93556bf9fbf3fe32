"""Pings, pongs and the server's clock."""

from __future__ import annotations

import pytest

from gateway.client.liveness import MAX_PINGS, ClockEstimate, Liveness

pytestmark = pytest.mark.unit


def liveness() -> Liveness:
    return Liveness(interval_s=5.0, timeout_s=15.0)


def test_ping_is_due_at_once_and_then_every_interval() -> None:
    lively = liveness()
    assert lively.is_ping_due(100.0)
    lively.ping(100.0)
    assert not lively.is_ping_due(104.9)
    assert lively.is_ping_due(105.0)


def test_peer_is_gone_when_a_ping_stays_unanswered() -> None:
    lively = liveness()
    first = lively.ping(100.0)
    lively.ping(105.0)
    assert not lively.is_peer_gone(114.9)
    assert lively.is_peer_gone(115.0)
    lively.pong(first, 0, 115.0)
    assert not lively.is_peer_gone(119.9)
    assert lively.is_peer_gone(120.0)


def test_offset_is_taken_at_the_middle_of_the_round_trip() -> None:
    lively = liveness()
    t = lively.ping(100.0)
    assert lively.pong(t, 7_000_000, 100.5) == ClockEstimate(offset_s=7.0 - 100.25, rtt_s=0.5)


def test_quickest_answer_gives_the_clock() -> None:
    lively = liveness()
    assert lively.clock is None
    for now, rtt_s, server_us in ((0.0, 0.4, 1), (10.0, 0.1, 2), (20.0, 0.3, 3)):
        lively.pong(lively.ping(now), server_us, now + rtt_s)
    assert lively.clock is not None
    assert lively.clock.rtt_s == pytest.approx(0.1)


def test_unknown_and_repeated_pongs_are_ignored() -> None:
    lively = liveness()
    t = lively.ping(1.0)
    assert lively.pong(t + 1, 0, 2.0) is None
    assert lively.pong(t, 0, 2.0) is not None
    assert lively.pong(t, 0, 2.0) is None


def test_pings_at_the_same_moment_differ_and_are_bounded() -> None:
    lively = liveness()
    assert len({lively.ping(1.0) for _ in range(3 * MAX_PINGS)}) == 3 * MAX_PINGS
    assert len(lively._sent_at) == MAX_PINGS
