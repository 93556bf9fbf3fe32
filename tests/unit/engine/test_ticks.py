from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from engine.ticks import next_tick

pytestmark = pytest.mark.unit


@given(st.floats(0.0, 1e7), st.sampled_from([0.125, 0.25, 1.0]))
def test_the_next_tick_is_a_multiple_neither_near_nor_far(now: float, period_s: float) -> None:
    tick_at = next_tick(now, period_s)
    assert math.fmod(tick_at, period_s) == 0.0
    assert period_s / 2 - 1e-6 <= tick_at - now <= 1.5 * period_s + 1e-6


def test_a_timer_that_is_a_little_early_does_not_tick_twice() -> None:
    assert next_tick(9.9996, 0.25) == next_tick(10.0004, 0.25) == 10.25


def test_longer_periods_tick_together_with_shorter_ones() -> None:
    assert next_tick(5.9, 1.0) == next_tick(6.8, 0.25) == next_tick(6.9, 0.125)
