"""Counts results while a run goes on."""

from __future__ import annotations

from collections import deque

from gateway.commands.report import milliseconds, percentile

_WINDOW_S = 2.0
_MAX_RECENT = 1000
_MAX_LATENCIES = 100_000  # an hour at 28 results a second; then the oldest are forgotten


class ResultMeter:
    """Latencies of a whole run, and rate and latency of its last two seconds.

    ``now`` is in seconds on any one monotonic clock.
    """

    def __init__(self) -> None:
        self.latencies_s: deque[float] = deque(maxlen=_MAX_LATENCIES)
        self._recent: deque[tuple[float, float]] = deque(maxlen=_MAX_RECENT)

    def add(self, now: float, latency_s: float) -> None:
        """Count a result that arrived at ``now``."""
        self.latencies_s.append(latency_s)
        self._recent.append((now, latency_s))

    def status(self, now: float) -> str:
        """``24.5 fps, latency 41.0 ms`` over the window that ends at ``now``."""
        while self._recent and self._recent[0][0] <= now - _WINDOW_S:
            self._recent.popleft()
        latency_s = percentile([latency for _, latency in self._recent], 50)
        return f"{len(self._recent) / _WINDOW_S:.1f} fps, latency {milliseconds(latency_s)}"
