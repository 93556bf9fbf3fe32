"""How many items come, and how fast. Pure: ``now`` is an argument."""

from __future__ import annotations

from collections import deque

RATE_SAMPLES = 64
RATE_TRUSTED = 16  # arrivals before the rate is believed
RATE_HORIZON_S = 2.0
PEAK_SPAN_S = 0.5


class ArrivalRate:
    """Count over span of the last arrivals: bursts do not make it swing, as they do a mean of
    gaps. As of the last arrival, so that what is derived from it does not move while nothing
    comes: a window that is longer each time one asks ends no sooner than its limit."""

    def __init__(self) -> None:
        self._arrivals: deque[float] = deque(maxlen=RATE_SAMPLES)
        self._is_trusted = False

    def note(self, now: float) -> None:
        self._arrivals.append(now)
        self._is_trusted = self._is_trusted or len(self._arrivals) >= RATE_TRUSTED
        while self._arrivals[0] < now - RATE_HORIZON_S:
            self._arrivals.popleft()

    @property
    def per_second(self) -> float | None:
        """None until enough arrivals were seen once."""
        if not self._is_trusted:
            return None
        span_s = self._arrivals[-1] - self._arrivals[0]
        if span_s > 0:
            return (len(self._arrivals) - 1) / span_s
        return 0.0 if len(self._arrivals) == 1 else float("inf")


class RecentPeak:
    """The largest value of the last ``PEAK_SPAN_S`` to twice that."""

    def __init__(self) -> None:
        self._span_began_at = 0.0
        self._this_span = self._last_span = 0

    def note(self, value: int, now: float) -> None:
        self._roll(now)
        self._this_span = max(self._this_span, value)

    def value(self, now: float) -> int:
        self._roll(now)
        return max(self._this_span, self._last_span)

    def _roll(self, now: float) -> None:
        age_s = now - self._span_began_at
        if age_s >= PEAK_SPAN_S:
            self._last_span = self._this_span if age_s < 2 * PEAK_SPAN_S else 0
            self._this_span = 0
            self._span_began_at = now
