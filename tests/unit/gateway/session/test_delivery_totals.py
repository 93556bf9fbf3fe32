from __future__ import annotations

import random
import statistics

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.session.delivery_totals import MAX_NOTED, DeliveryTimer, DeliveryTotals, MovingSpread
from gateway.stream.release import Departure, Reserve

pytestmark = pytest.mark.unit


def departure(
    pace_s: float | None = 0.03, *, num_texts: int = 1, underrun_s: float = 0.0
) -> Departure:
    return Departure(text="x", num_texts=num_texts, pace_s=pace_s, lag_s=0.2, underrun_s=underrun_s)


class Now:
    """A clock that tests set."""

    def __init__(self) -> None:
        self.s = 10.0

    def __call__(self) -> float:
        return self.s


def test_gaps_are_judged_by_the_pace_told_before_them() -> None:
    now, totals = Now(), DeliveryTotals()
    timer = DeliveryTimer(totals, now, Reserve())
    for gap_s in (0.0, 0.030, 0.034, 0.036, 0.200):
        now.s += gap_s
        timer.depart(departure(underrun_s=0.1 if gap_s > 0.1 else 0.0))
    totals.settle()
    assert (totals.num_paced, totals.num_within, totals.num_stalls) == (4, 2, 1)
    assert totals.num_underruns == 1
    assert totals.gaps.sum == pytest.approx(0.3)
    assert totals.lag.sum == pytest.approx(1.0)


def test_without_a_pace_nothing_is_judged() -> None:
    now, totals = Now(), DeliveryTotals()
    timer = DeliveryTimer(totals, now, Reserve())
    for _ in range(3):
        now.s += 1.0
        timer.depart(departure(None))
    totals.settle()
    assert (totals.num_paced, totals.num_stalls, sum(totals.gaps.counts)) == (0, 0, 2)


def test_departures_are_counted_without_anybody_reading() -> None:
    totals = DeliveryTotals()
    timer = DeliveryTimer(totals, Now(), Reserve())
    for _ in range(MAX_NOTED):
        timer.depart(departure())
    assert sum(totals.lag.counts) == MAX_NOTED
    timer.depart(departure())
    assert sum(totals.settle().lag.counts) == MAX_NOTED + 1
    assert sum(totals.settle().lag.counts) == MAX_NOTED + 1


def test_what_never_left_is_held_no_more() -> None:
    totals = DeliveryTotals()
    reserves = [Reserve(), Reserve()]
    timers = [DeliveryTimer(totals, Now(), reserve) for reserve in reserves]
    for text in ("a", "", "b", "c"):
        reserves[0].push(text, 0.0)
    reserves[1].push("d", 0.0)
    assert totals.num_held == 4
    timers[0].end()
    timers[0].end()
    assert totals.num_held == 1


def test_moving_figures_are_mean_and_deviation_and_follow_a_change() -> None:
    spread, rng = MovingSpread(), random.Random(1)
    spread.observe(np.array([rng.gauss(0.03, 0.004) for _ in range(5000)]))
    assert spread.mean == pytest.approx(0.03, rel=0.02)
    assert spread.std == pytest.approx(0.004, rel=0.1)
    spread.observe(np.full(20_000, 0.05))
    assert spread.mean == pytest.approx(0.05, rel=0.01)
    assert spread.std < 0.001


@given(st.lists(st.lists(st.floats(0.0, 10.0)), max_size=5))
def test_few_values_have_the_same_weight_however_they_come(portions: list[list[float]]) -> None:
    spread = MovingSpread()
    for portion in portions:
        spread.observe(np.array(portion))
    values = [value for portion in portions for value in portion]
    if values:
        assert spread.mean == pytest.approx(statistics.fmean(values), abs=1e-9)
        assert spread.std == pytest.approx(statistics.pstdev(values), abs=1e-6)
