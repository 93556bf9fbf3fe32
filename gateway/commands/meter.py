"""Rate and latency of the last moments, while a run goes on."""

from __future__ import annotations

import statistics
from collections import deque

from gateway.commands.report import milliseconds

_WINDOW_S = 2.0
_MAX_RECENT = 2000  # beyond 1000 results a second the rate shown is too low


class ResultMeter:
    """Watches a window of two seconds. ``now`` is in seconds on any one monotonic clock."""

    def __init__(self) -> None:
        self._recent: deque[tuple[float, float]] = deque(maxlen=_MAX_RECENT)

    def add(self, now: float, latency_s: float) -> None:
        """Count a result that arrived at ``now``."""
        self._recent.append((now, latency_s))

    def status(self, now: float) -> str:
        """``24.5 fps, latency 41.0 ms`` (the median) over the window that ends at ``now``."""
        while self._recent and self._recent[0][0] <= now - _WINDOW_S:
            self._recent.popleft()
        latencies = [latency_s for _, latency_s in self._recent]
        latency_s = statistics.median(latencies) if latencies else None
        return f"{len(latencies) / _WINDOW_S:.1f} fps, latency {milliseconds(latency_s)}"
