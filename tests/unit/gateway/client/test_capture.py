"""The frame rate limit."""

from __future__ import annotations

import pytest

from gateway.client.capture import RateLimit

pytestmark = pytest.mark.unit


def passed(fps: float | None, times: list[float]) -> int:
    rate = RateLimit(fps)
    return sum(rate.passes(at) for at in times)


def test_every_second_frame_passes_half_the_rate_despite_jitter() -> None:
    times = [number / 30 + (0.004 if number % 3 else -0.004) for number in range(300)]
    assert 148 <= passed(15.0, times) <= 152


def test_rate_is_kept_when_the_camera_is_not_a_multiple() -> None:
    assert 98 <= passed(10.0, [number / 24 for number in range(240)]) <= 102


def test_no_limit_passes_all_and_a_slow_camera_loses_nothing() -> None:
    times = [number / 5 for number in range(50)]
    assert passed(None, times) == passed(30.0, times) == 50


def test_pause_is_not_made_up_for() -> None:
    times = [0.0, 100.0, 100.01, 100.02, 100.1]
    assert passed(10.0, times) == 3
