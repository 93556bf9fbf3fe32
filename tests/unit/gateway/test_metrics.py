"""Families, rendering and the loop-lag window."""

from __future__ import annotations

import pytest

from gateway.metrics import LoopLag, counter, gauge, render
from gateway.session.pressure import MAX_LOOP_LAG_S
from gateway.stream.service_level import Level, ServiceLevel, Signals

pytestmark = pytest.mark.unit


def test_families_are_named_and_labelled() -> None:
    text = render(
        [
            counter("frames_dropped", "Why.", [({"model": "a", "reason": "late"}, 3)]),
            gauge("streams", "Open.", [({}, 2)]),
        ]
    ).decode()
    assert 'clawstream_frames_dropped_total{model="a",reason="late"} 3.0' in text
    assert "clawstream_streams 2.0" in text
    assert "process_resident_memory_bytes" in text


def test_family_without_samples_is_announced() -> None:
    assert (
        "# TYPE clawstream_batches_total counter" in render([counter("batches", "B.", [])]).decode()
    )


def test_lag_has_a_maximum() -> None:
    lag = LoopLag()
    for index, lag_s in enumerate((0.0, 0.001, 0.005)):
        lag.record(lag_s, now=index * 0.05)
    assert lag.statistics().max_s == 0.005


def test_mean_is_of_the_samples_of_a_window() -> None:
    lag = LoopLag()
    for index in range(40):
        lag.record(0.001 * (index % 3), now=index * 0.25)
    assert lag.statistics().mean_s == pytest.approx(0.001, rel=0.05)


def test_one_late_tick_soon_after_the_start_is_no_load() -> None:
    lag = LoopLag()
    lag.record(0.25, now=0.25)
    assert lag.statistics().max_s == 0.25
    assert lag.statistics().mean_s < MAX_LOOP_LAG_S


def test_a_suspension_shows_as_the_maximum_and_is_no_load() -> None:
    lag = LoopLag()
    lag.record(15.0, now=15.0)
    for index in range(39):
        lag.record(0.001, now=15.25 + 0.25 * index)
    assert lag.statistics().max_s == 15.0
    assert lag.statistics().mean_s < MAX_LOOP_LAG_S


def test_lag_that_is_over_does_not_last() -> None:
    lag = LoopLag()
    for index in range(20):
        lag.record(0.1, now=0.25 * index)
    assert lag.statistics().lasting_s == pytest.approx(0.1)
    for index in range(20, 23):
        lag.record(0.0, now=0.25 * index)
    assert lag.statistics().mean_s > MAX_LOOP_LAG_S
    assert lag.statistics().lasting_s == 0.0


@pytest.mark.parametrize("base_s", [0.0, 0.012])
def test_single_suspensions_call_for_no_step(base_s: float) -> None:
    lag, service = LoopLag(), ServiceLevel(0.0)
    for index in range(400):
        now = 0.25 * index
        lag.record(0.4 if index % 5 == 0 else base_s, now)
        loop = lag.statistics().lasting_s / MAX_LOOP_LAG_S
        assert service.update(Signals(loop=loop), now) is Level.NORMAL


def test_lag_that_stays_calls_for_steps() -> None:
    lag, service = LoopLag(), ServiceLevel(0.0)
    for index in range(40):
        lag.record(0.03, 0.25 * index)
        service.update(Signals(loop=lag.statistics().lasting_s / MAX_LOOP_LAG_S), 0.25 * index)
    assert service.level >= Level.LESS_INPUT


def test_lag_forgets_after_its_window() -> None:
    lag = LoopLag()
    lag.record(0.3, now=0.0)
    lag.record(0.0, now=5.1)
    assert lag.statistics().max_s == 0.3
    lag.record(0.0, now=10.2)
    assert lag.statistics().max_s == 0.0


def test_no_samples_is_no_lag() -> None:
    assert LoopLag().statistics().mean_s == 0.0
