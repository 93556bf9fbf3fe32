from __future__ import annotations

import pytest

from gateway.stream.network_state import NetworkState
from gateway.stream.rate_ceiling import RateCeiling

pytestmark = pytest.mark.unit


def test_above_the_low_water_mark_there_is_no_limit_and_below_it_falls_linearly() -> None:
    ceiling = RateCeiling(capacity=50, fill_rate=30, fastest_hz=50)
    assert ceiling.gap_s(0.0) == 0.0
    ceiling.take(25, 0.0)
    assert ceiling.gap_s(0.0) == 0.0
    ceiling.take(12, 0.0)
    assert 1 / ceiling.gap_s(0.0) == pytest.approx(30 + 13 / 25 * 20)
    ceiling.take(30, 0.0)
    assert 1 / ceiling.gap_s(0.0) == pytest.approx(30)


def test_it_fills_with_time_up_to_its_capacity() -> None:
    ceiling = RateCeiling(capacity=50, fill_rate=30, fastest_hz=50)
    ceiling.take(50, 0.0)
    assert ceiling.gap_s(1.0) == 0.0
    ceiling.take(50, 100.0)
    assert ceiling.gap_s(100.0) == pytest.approx(1 / 30)


def test_loss_and_jitter_lower_the_fill_rate() -> None:
    ceiling = RateCeiling(capacity=50, fill_rate=30, fastest_hz=50)
    ceiling.note(NetworkState(loss=0.1, jitter_ms=50.0))
    assert ceiling.fill_rate == pytest.approx(30 * 0.9 / 1.5)
    ceiling.note(NetworkState())
    assert ceiling.fill_rate == 30


def test_streams_that_share_it_get_their_part() -> None:
    ceiling = RateCeiling(capacity=50, fill_rate=30, fastest_hz=50)
    ceiling.take(50, 0.0)
    ceiling.num_sharing = 3
    assert ceiling.gap_s(0.0) == pytest.approx(0.1)


@pytest.mark.parametrize(("capacity", "fill_rate"), [(0, 30), (50, 0)])
def test_nothing_is_not_a_bucket(capacity: float, fill_rate: float) -> None:
    with pytest.raises(ValueError, match="must be > 0"):
        RateCeiling(capacity=capacity, fill_rate=fill_rate, fastest_hz=50)
