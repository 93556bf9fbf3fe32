"""The families of the pressure ladder (docs/metrics.md)."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import fields

from prometheus_client.core import Metric

from engine.types import Priority
from gateway.metrics import Samples, counter, gauge
from gateway.session.pressure import PressureStatistics


def pressure_families(now: PressureStatistics) -> Iterator[Metric]:
    yield gauge("service_level", "0 is normal, 5 takes realtime only.", [({}, int(now.level))])
    seconds: Samples = [({"level": level.label}, spent) for level, spent in now.seconds.items()]
    yield counter("service_level_seconds", "Time spent at each level.", seconds)
    load: Samples = [
        ({"signal": field.name}, getattr(now.signals, field.name)) for field in fields(now.signals)
    ]
    yield gauge("load", "Used divided by allowed; above 1 the level rises.", load)
    shed: Samples = [
        ({"priority": priority.value}, now.shed.get(priority, 0)) for priority in Priority
    ]
    yield counter("requests_shed", "Frames and prompts refused by the service level.", shed)
