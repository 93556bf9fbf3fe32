"""Families, rendering and the loop-lag window."""

from __future__ import annotations

import pytest

from gateway.metrics import LoopLag, counter, gauge, render

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


def test_lag_has_mean_and_maximum() -> None:
    lag = LoopLag()
    for index, lag_s in enumerate((0.0, 0.001, 0.005)):
        lag.record(lag_s, now=index * 0.05)
    assert lag.statistics().max_s == 0.005
    assert lag.statistics().mean_s == pytest.approx(0.002)


def test_lag_forgets_after_its_window() -> None:
    lag = LoopLag()
    lag.record(0.3, now=0.0)
    lag.record(0.0, now=5.1)
    assert lag.statistics().max_s == 0.3
    lag.record(0.0, now=10.2)
    assert lag.statistics().max_s == 0.0


def test_no_samples_is_no_lag() -> None:
    assert LoopLag().statistics().mean_s == 0.0
