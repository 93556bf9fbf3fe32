from __future__ import annotations

import pytest

from gateway.stream.congestion import ACCEPT_AFTER_S, LEAST_FACTOR, Congestion
from gateway.stream.network_state import NetworkState

pytestmark = pytest.mark.unit


def noted(*rtts_ms: float) -> Congestion:
    congestion = Congestion()
    for second, rtt_ms in enumerate(rtts_ms):
        congestion.note(NetworkState(rtt_ms=rtt_ms), float(second))
    return congestion


def test_a_jump_of_the_delay_is_congestion_and_a_slow_change_is_not() -> None:
    assert not noted(20.0, 60.0).is_active
    assert noted(20.0, 80.0).is_active
    assert not noted(*(20.0 + 3.0 * second for second in range(60))).is_active


def test_rates_fall_by_a_tenth_per_second_and_rise_again() -> None:
    congestion = noted(20.0, 100.0)
    assert congestion.factor(1.0) == 1.0
    assert congestion.factor(2.0) == pytest.approx(0.9)
    assert congestion.factor(3.0) == pytest.approx(0.81)
    congestion.note(NetworkState(rtt_ms=22.0), 3.0)
    assert congestion.factor(4.0) == pytest.approx(0.9)
    assert congestion.factor(9.0) == 1.0
    assert congestion.num_jumps == 1


def test_a_delay_that_stays_becomes_the_usual_one() -> None:
    congestion = noted(20.0, 100.0)
    for tenth in range(10, 120):
        congestion.note(NetworkState(rtt_ms=100.0), 1.0 + tenth / 10)
    assert not congestion.is_active
    assert congestion.num_jumps == 1
    assert congestion.factor(1.0 + ACCEPT_AFTER_S + 30.0) == 1.0


def test_the_factor_has_a_floor() -> None:
    assert noted(20.0, 100.0).factor(100.0) == LEAST_FACTOR
