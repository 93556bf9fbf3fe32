from __future__ import annotations

import pytest

from engine.workers.stall import StallLimit

pytestmark = pytest.mark.unit


def make_limit(silences_s: list[float]) -> StallLimit:
    limit = StallLimit(floor_s=5.0, ceiling_s=60.0)
    for silence_s in silences_s:
        limit.observe(silence_s)
    return limit


def test_before_enough_was_seen_the_ceiling_holds() -> None:
    assert make_limit([0.01] * 15).limit_s() == 60.0


def test_a_fast_model_gets_the_floor() -> None:
    assert make_limit([0.01] * 16).limit_s() == 5.0


def test_a_slow_model_gets_twenty_times_what_nine_in_ten_batches_take() -> None:
    assert make_limit([0.5] * 18 + [1.0] * 2).limit_s() == pytest.approx(20.0)
    assert make_limit([0.5] * 19 + [9.0]).limit_s() == pytest.approx(10.0)


def test_a_very_slow_model_gets_the_ceiling() -> None:
    assert make_limit([10.0] * 20).limit_s() == 60.0


def test_a_ceiling_below_the_floor_wins() -> None:
    limit = StallLimit(floor_s=5.0, ceiling_s=0.4)
    for _ in range(20):
        limit.observe(0.001)
    assert limit.limit_s() == 0.4


def test_what_was_long_ago_is_forgotten() -> None:
    assert make_limit([2.0] * 64 + [0.01] * 64).limit_s() == 5.0
