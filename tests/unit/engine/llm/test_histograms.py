"""Buckets and windows of what a model's worker measures."""

from __future__ import annotations

import pytest

from engine.llm.histograms import BOUNDS, WINDOW, Histogram, RecentValues

pytestmark = pytest.mark.unit


def test_counts_are_cumulative_and_a_bound_belongs_to_its_bucket() -> None:
    histogram = Histogram((1.0, 2.0))
    for value in (0.5, 1.0, 1.5, 9.0):
        histogram.observe(value)
    assert histogram.cumulative() == (2, 3, 4)
    assert histogram.sum == 12.0


def test_a_value_may_count_several_times() -> None:
    histogram = Histogram((1.0,))
    histogram.observe(0.5, 3)
    assert histogram.cumulative() == (3, 3)
    assert histogram.sum == 1.5


@pytest.mark.parametrize("name", BOUNDS)
def test_bounds_rise(name: str) -> None:
    assert list(BOUNDS[name]) == sorted(set(BOUNDS[name]))


@pytest.mark.parametrize("name", ["step_s", "inter_token_s"])
def test_buckets_are_fine_where_a_chat_is_smooth_or_not(name: str) -> None:
    assert sum(0.005 <= bound <= 0.060 for bound in BOUNDS[name]) >= 15


def test_quantiles_and_mean_are_of_the_last_values() -> None:
    values = RecentValues()
    assert values.quantiles([0.5, 0.99]) == [0.0, 0.0]
    assert values.mean() == 0.0
    for value in range(100):
        values.add(float(value))
    assert values.quantiles([0.5, 0.99]) == [50.0, 99.0]
    for _ in range(WINDOW):
        values.add(1.0)
    assert values.quantiles([0.0, 1.0]) == [1.0, 1.0]
    assert values.mean() == 1.0
