"""How answers left: gaps beside the pace that was announced for them, and what pacing cost."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, field

from engine.histogram import Histogram
from gateway.session.histogram import GAP_BOUNDS_S, LAG_BOUNDS_S
from gateway.stream.release import Departure

TOLERANCE = 0.15  # of the announced pace
STALL_RATIO, LEAST_STALL_S = 2.0, 0.1  # a gap over both is one that readers notice
MEMORY = 1 / 2000  # weight of the newest gap in moving figures: about 30 streams' last two seconds


@dataclass(slots=True)
class MovingSpread:
    """Exponentially weighted mean and standard deviation (West 1979)."""

    mean: float = 0.0
    _variance: float = 0.0
    _num_seen: int = 0

    @property
    def std(self) -> float:
        return math.sqrt(self._variance)

    def observe(self, value: float) -> None:
        self._num_seen += 1
        gain = MEMORY if self._num_seen * MEMORY > 1.0 else 1.0 / self._num_seen
        step = value - self.mean
        self.mean += gain * step
        self._variance = (1.0 - gain) * (self._variance + gain * step * step)


@dataclass(slots=True)
class DeliveryTotals:
    """One model's answers since the process began; ``gaps`` are those between departures.

    ``spread`` and ``error`` are moving figures of paced gaps and of those less their pace, seconds.
    ``num_paced`` gaps had a pace, ``num_within`` were within ``TOLERANCE`` of it. ``num_held``
    texts wait at this moment.
    """

    gaps: Histogram = field(default_factory=lambda: Histogram(GAP_BOUNDS_S))
    lag: Histogram = field(default_factory=lambda: Histogram(LAG_BOUNDS_S))
    spread: MovingSpread = field(default_factory=MovingSpread)
    error: MovingSpread = field(default_factory=MovingSpread)
    num_paced: int = 0
    num_within: int = 0
    num_stalls: int = 0
    num_underruns: int = 0
    num_held: int = 0


class DeliveryTimer:
    """Watches one answer leave."""

    def __init__(self, totals: DeliveryTotals, now: Callable[[], float]) -> None:
        self._totals = totals
        self._now = now
        self._last_at: float | None = None
        self._pace_s: float | None = None

    def hold(self, text: str) -> None:
        """A token came; nothing is held of one that made nothing visible."""
        self._totals.num_held += bool(text)

    def depart(self, departure: Departure) -> None:
        totals, last_at = self._totals, self._last_at
        self._last_at = now = self._now()
        totals.num_held -= departure.num_texts
        totals.lag.observe(departure.lag_s)
        if departure.underrun_s > 0.0:
            totals.num_underruns += 1
        if last_at is not None:
            self._observe_gap(now - last_at)
        self._pace_s = departure.pace_s

    def end(self, num_left: int) -> None:
        """The answer is over; so many texts never left."""
        self._totals.num_held -= num_left

    def _observe_gap(self, gap_s: float) -> None:
        totals, pace_s = self._totals, self._pace_s
        totals.gaps.observe(gap_s)
        if pace_s is None:
            return
        totals.num_paced += 1
        if abs(gap_s - pace_s) <= TOLERANCE * pace_s:
            totals.num_within += 1
        elif gap_s > LEAST_STALL_S and gap_s > STALL_RATIO * pace_s:
            totals.num_stalls += 1
        totals.spread.observe(gap_s)
        totals.error.observe(gap_s - pace_s)
