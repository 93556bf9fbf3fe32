"""The bounded sample of latencies."""

from __future__ import annotations

import pytest

from gateway.client.statistics import Reservoir, StreamStatistics

pytestmark = pytest.mark.unit


def test_percentiles_are_by_nearest_rank() -> None:
    reservoir = Reservoir()
    assert reservoir.percentile(50) is None
    for value in (5.0, 1.0, 3.0, 2.0, 4.0):
        reservoir.add(value)
    ranks = [reservoir.percentile(percent) for percent in (0, 20, 50, 95, 100)]
    assert ranks == [1.0, 1.0, 3.0, 5.0, 5.0]


def test_sample_is_bounded_and_covers_the_whole_run() -> None:
    reservoir = Reservoir(capacity=500)
    for value in range(50_000):
        reservoir.add(float(value))
    assert len(reservoir) == 500
    median = reservoir.percentile(50)
    assert median is not None
    assert 20_000 < median < 30_000


def test_new_statistics_add_up() -> None:
    assert StreamStatistics().receipts_add_up
