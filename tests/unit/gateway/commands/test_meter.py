from __future__ import annotations

import pytest

from gateway.commands.meter import ResultMeter

pytestmark = pytest.mark.unit


def test_status_covers_the_last_two_seconds() -> None:
    meter = ResultMeter()
    for index in range(100):
        meter.add(now=index * 0.1, latency_s=0.010 if index < 50 else 0.020)
    assert meter.status(now=9.95) == "10.0 fps, latency 20.0 ms"


def test_status_of_silence_is_zero() -> None:
    meter = ResultMeter()
    assert meter.status(now=0.0) == "0.0 fps, latency none"
    meter.add(now=1.0, latency_s=0.5)
    assert meter.status(now=10.0) == "0.0 fps, latency none"
