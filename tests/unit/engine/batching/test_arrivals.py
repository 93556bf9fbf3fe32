from __future__ import annotations

import pytest

from engine.batching.arrivals import (
    PEAK_SPAN_S,
    RATE_HORIZON_S,
    RATE_TRUSTED,
    ArrivalRate,
    RecentPeak,
)

pytestmark = pytest.mark.unit


def arrived(times: list[float]) -> ArrivalRate:
    rate = ArrivalRate()
    for time in times:
        rate.note(time)
    return rate


def test_a_few_arrivals_say_nothing() -> None:
    assert arrived([0.0] * (RATE_TRUSTED - 1)).per_second is None


def test_the_rate_is_count_over_span() -> None:
    rate = arrived([number / 100 for number in range(200)])
    assert rate.per_second == pytest.approx(100.0)


def test_bursts_do_not_make_the_rate_swing() -> None:
    times = [burst / 10 for burst in range(20) for _ in range(8)]
    for unseen in range(8):
        assert arrived(times[: len(times) - unseen]).per_second == pytest.approx(80.0, rel=0.15)


def test_silence_lowers_the_rate_to_nothing() -> None:
    times = [number / 100 for number in range(100)]
    assert (arrived([*times, 2.0]).per_second or 0.0) < 50.0
    assert arrived([*times, 1.1 + RATE_HORIZON_S]).per_second == 0.0


def test_arrivals_in_one_instant_are_legal() -> None:
    assert arrived([1.0] * 20).per_second == float("inf")


def test_a_peak_is_remembered_for_a_while_and_forgotten_after_twice_that() -> None:
    peak = RecentPeak()
    peak.note(8, 10.0)
    peak.note(3, 10.1)
    assert peak.value(10.0 + PEAK_SPAN_S) == 8
    peak.note(3, 10.0 + PEAK_SPAN_S)
    assert peak.value(10.0 + 2 * PEAK_SPAN_S) == 3
    assert peak.value(20.0) == 0
