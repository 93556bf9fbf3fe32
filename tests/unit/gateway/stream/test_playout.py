from __future__ import annotations

import random
import statistics
from itertools import pairwise

import pytest

from gateway.stream.playout import MIN_SAMPLES, PlayoutClock

pytestmark = pytest.mark.unit

PERIOD_US = 33_333


def play(
    clock: PlayoutClock, delays_s: list[float], *, first: int = 0, offset_s: float = 500.0
) -> list[float | None]:
    """Results of a 30 fps camera that take so long each; ``offset_s`` is between the clocks."""
    times = []
    now = float("-inf")
    for number, delay_s in enumerate(delays_s, first):
        t_us = number * PERIOD_US
        now = max(now, offset_s + t_us / 1e6 + delay_s)  # results come in order
        times.append(clock.schedule(t_us, now))
    return times


def gaps_ms(times: list[float | None]) -> list[float]:
    shown = [time for time in times if time is not None]
    return [1e3 * (b - a) for a, b in pairwise(shown)]


def test_results_that_come_evenly_are_hardly_delayed() -> None:
    clock = PlayoutClock(max_delay_s=0.25)
    times = play(clock, [0.05] * 100)
    assert times[-1] == pytest.approx(500.0 + 99 * PERIOD_US / 1e6 + 0.052)
    assert clock.delay_s == pytest.approx(0.002)


def test_uneven_results_are_shown_evenly() -> None:
    rng = random.Random(1)
    delays = [0.04 + rng.uniform(0, 0.08) for _ in range(600)]
    times = play(PlayoutClock(max_delay_s=0.25), delays)
    raw = [b - a for a, b in pairwise(delays)]
    assert statistics.pstdev(raw) > 0.03
    settled = gaps_ms(times[64:])
    assert statistics.median(settled) == pytest.approx(33.3, abs=0.1)
    assert statistics.pstdev(settled) < 4
    assert sum(time is None for time in times) <= 6


def test_nothing_is_shown_before_it_is_there_nor_out_of_order() -> None:
    rng = random.Random(2)
    clock = PlayoutClock(max_delay_s=0.1)
    last = now = float("-inf")
    for number in range(2000):
        t_us = number * PERIOD_US
        now = max(now, t_us / 1e6 + rng.expovariate(20.0))
        at = clock.schedule(t_us, now)
        if at is not None:
            assert at >= now
            assert at >= last
            last = at


def test_the_wait_is_bounded_by_the_largest_delay() -> None:
    rng = random.Random(3)
    clock = PlayoutClock(max_delay_s=0.1)
    now = float("-inf")
    for number in range(500):
        t_us = number * PERIOD_US
        now = max(now, t_us / 1e6 + rng.uniform(0, 1.0))
        at = clock.schedule(t_us, now)
        assert at is None or at - now <= 0.1 + 1e-9


def test_a_result_behind_the_next_frames_turn_is_late() -> None:
    clock = PlayoutClock(max_delay_s=0.25)
    play(clock, [0.05] * 60)
    (late,) = play(clock, [0.05 + 0.5], first=60)
    # With so few of them in the window the delay follows, up to its bound.
    assert late is None
    (on_time,) = play(clock, [0.05], first=80)
    assert on_time is not None


def test_the_first_results_are_never_late() -> None:
    clock = PlayoutClock(max_delay_s=0.01)
    assert None not in play(clock, [0.05, 0.3, 0.6, 0.9, 1.2])


def test_a_clock_that_jumps_loses_a_few_results_and_begins_anew() -> None:
    clock = PlayoutClock(max_delay_s=0.2)
    play(clock, [0.05] * 200)
    times = play(clock, [5.05] * 40, first=200)
    assert times.count(None) == MIN_SAMPLES - 1
    assert None not in times[MIN_SAMPLES:]


def test_a_capture_time_that_falls_begins_anew() -> None:
    clock = PlayoutClock(max_delay_s=0.2)
    play(clock, [0.05] * 200)
    assert clock.schedule(0, 600.0) is not None
    assert clock.delay_s == pytest.approx(0.002)


def test_the_delay_falls_again_slowly_when_results_have_become_even() -> None:
    rng = random.Random(4)
    clock = PlayoutClock(max_delay_s=0.25)
    play(clock, [0.02 + rng.uniform(0, 0.1) for _ in range(200)])
    assert clock.delay_s > 0.08
    times = play(clock, [0.02] * 300, first=200)
    assert clock.delay_s < 0.02
    assert min(gaps_ms(times)) > 33.3 * 0.94


def test_a_drifting_clock_is_followed() -> None:
    clock = PlayoutClock(max_delay_s=0.1)
    for number in range(20_000):  # eleven minutes, 200 ppm
        t_us = number * PERIOD_US
        now = t_us / 1e6 * 1.0002 + 0.03
        at = clock.schedule(t_us, now)
        assert at is not None
        assert at - now < 0.03


def test_a_delay_of_nothing_makes_no_sense() -> None:
    with pytest.raises(ValueError, match="max_delay_s"):
        PlayoutClock(max_delay_s=0.0)
