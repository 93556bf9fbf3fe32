"""Loop lag, and the vocabulary for Prometheus: components have ``statistics()``, this renders.

``gateway.api.metrics`` names the families; docs/metrics.md lists them.
"""

from __future__ import annotations

import asyncio
import time
from collections import deque
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from prometheus_client import CollectorRegistry, ProcessCollector
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.exposition import generate_latest
from prometheus_client.registry import Collector

from engine.ticks import next_tick

PREFIX = "clawstream_"
SAMPLE_INTERVAL_S = 0.25
WINDOW_S = 10.0
# Of half a window: one late tick among a handful says nothing about how busy the loop is.
_MIN_SAMPLES = round(WINDOW_S / 2 / SAMPLE_INTERVAL_S)
# Less than a second's: one late tick must not count for as long as it takes to act upon it.
_NUM_LATEST = 3

Samples = Iterable[tuple[Mapping[str, str], float]]


def counter(name: str, help_text: str, samples: Samples) -> Metric:
    """A family ``clawstream_NAME_total``; every sample has the same label names."""
    return _filled(CounterMetricFamily, name, help_text, samples)


def gauge(name: str, help_text: str, samples: Samples) -> Metric:
    """A family ``clawstream_NAME``."""
    return _filled(GaugeMetricFamily, name, help_text, samples)


def _filled(
    family: type[CounterMetricFamily] | type[GaugeMetricFamily],
    name: str,
    help_text: str,
    samples: Samples,
) -> Metric:
    values = list(samples)
    labels = list(values[0][0]) if values else []
    metric = family(PREFIX + name, help_text, labels=labels)
    for label_values, value in values:
        metric.add_metric([label_values[label] for label in labels], value)
    return metric


class _Snapshot(Collector):
    def __init__(self, families: list[Metric]) -> None:
        self._families = families

    def collect(self) -> list[Metric]:
        return self._families


def render(families: list[Metric]) -> bytes:
    """The text exposition of ``families`` and of this process; takes milliseconds."""
    registry = CollectorRegistry()
    registry.register(_Snapshot(families))
    ProcessCollector(registry=registry)
    return generate_latest(registry)


@dataclass(frozen=True, slots=True, kw_only=True)
class LagStatistics:
    """How late the event loop ran its timers over the last five to ten seconds, in seconds; of a
    loop that has not run for so long, the mean takes the time before for punctual."""

    mean_s: float
    max_s: float
    latest_s: float  # mean of the latest samples

    @property
    def lasting_s(self) -> float:
        """The mean, unless the latest samples say that it is over."""
        return min(self.mean_s, self.latest_s)


class LoopLag:
    """Measures how late the loop is; every callback longer than a millisecond shows here.

    ``run`` until cancelled; it is the owner's task.
    """

    def __init__(self) -> None:
        self._recent = _Window()
        self._before = _Window()
        self._latest = deque([0.0] * _NUM_LATEST, maxlen=_NUM_LATEST)

    def statistics(self) -> LagStatistics:
        num_samples = self._recent.num_samples + self._before.num_samples
        total_s = self._recent.total_s + self._before.total_s
        return LagStatistics(
            mean_s=total_s / max(num_samples, _MIN_SAMPLES),
            max_s=max(self._recent.max_s, self._before.max_s),
            latest_s=sum(self._latest) / _NUM_LATEST,
        )

    def record(self, lag_s: float, now: float) -> None:
        if now >= self._recent.ends_at:
            self._before, self._recent = self._recent, _Window(ends_at=now + WINDOW_S / 2)
        # A sample stands for an interval: beyond that the process was suspended, and the means are
        # what tells how busy it is.
        counted_s = min(lag_s, SAMPLE_INTERVAL_S)
        self._recent.add(lag_s, counted_s)
        self._latest.append(counted_s)

    async def run(self) -> None:
        while True:
            # Not loop.time(): uvloop's stands still during a turn, and counts in milliseconds.
            now = time.monotonic()
            due = next_tick(now, SAMPLE_INTERVAL_S)
            await asyncio.sleep(due - now)
            now = time.monotonic()
            self.record(max(0.0, now - due), now)


@dataclass(slots=True)
class _Window:
    """Samples of half the time that the statistics look back."""

    ends_at: float = float("-inf")
    num_samples: int = 0
    total_s: float = 0.0
    max_s: float = 0.0

    def add(self, lag_s: float, counted_s: float) -> None:
        self.num_samples += 1
        self.total_s += counted_s
        self.max_s = max(self.max_s, lag_s)
