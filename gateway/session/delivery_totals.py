"""How answers left: gaps beside the pace that was announced for them, and what pacing cost."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, field

from engine.histogram import Histogram
from gateway.session.histogram import GAP_BOUNDS_S, LAG_BOUNDS_S
from gateway.stream.release import Departure, Reserve

TOLERANCE = 0.15  # of the announced pace
STALL_RATIO, LEAST_STALL_S = 2.0, 0.1  # a gap over both is one that readers notice
MEMORY = 1 / 2000  # weight of the newest gap in moving figures: about 30 streams' last two seconds


@dataclass(slots=True)
class MovingSpread:
    """Exponentially weighted mean and standard deviation (West 1979)."""

    mean: float = 0.0
    _variance: float = 0.0
    _gain: float = 1.0  # of the next value: 1, 1/2, 1/3 and so on, down to ``MEMORY``

    @property
    def std(self) -> float:
        return math.sqrt(self._variance)

    def observe(self, value: float) -> None:
        gain = self._gain
        if gain > MEMORY:
            self._gain = gain / (1.0 + gain)
        step = value - self.mean
        change = gain * step
        self.mean += change
        self._variance = (1.0 - gain) * (self._variance + change * step)


@dataclass(slots=True)
class DeliveryTotals:
    """One model's answers since the process began; ``gaps`` are those between departures.

    ``spread`` and ``error`` are moving figures of paced gaps and of those less their pace, seconds.
    ``num_paced`` gaps had a pace, ``num_within`` were within ``TOLERANCE`` of it. ``reserves`` are
    those of the answers under way.
    """

    gaps: Histogram = field(default_factory=lambda: Histogram(GAP_BOUNDS_S))
    lag: Histogram = field(default_factory=lambda: Histogram(LAG_BOUNDS_S))
    spread: MovingSpread = field(default_factory=MovingSpread)
    error: MovingSpread = field(default_factory=MovingSpread)
    num_paced: int = 0
    num_within: int = 0
    num_stalls: int = 0
    num_underruns: int = 0
    reserves: set[Reserve] = field(default_factory=set)

    @property
    def num_held(self) -> int:
        """Texts that wait at this moment."""
        return sum(map(len, self.reserves))


class DeliveryTimer:
    """Watches one answer leave, until its ``end``."""

    __slots__ = ("_last_at", "_now", "_pace_s", "_reserve", "_totals")

    def __init__(self, totals: DeliveryTotals, now: Callable[[], float], reserve: Reserve) -> None:
        totals.reserves.add(reserve)
        self._totals = totals
        self._now = now
        self._reserve = reserve
        self._last_at: float | None = None
        self._pace_s: float | None = None

    def depart(self, departure: Departure) -> None:
        totals, last_at = self._totals, self._last_at
        self._last_at = now = self._now()
        totals.lag.observe(departure.lag_s)
        if departure.underrun_s > 0.0:
            totals.num_underruns += 1
        if last_at is not None:
            self._observe_gap(now - last_at)
        self._pace_s = departure.pace_s

    def end(self) -> None:
        """The answer is over, and what is left of it never leaves."""
        self._totals.reserves.discard(self._reserve)

    def _observe_gap(self, gap_s: float) -> None:
        totals, pace_s = self._totals, self._pace_s
        totals.gaps.observe(gap_s)
        if pace_s is None:
            return
        totals.num_paced += 1
        error_s = gap_s - pace_s
        if abs(error_s) <= TOLERANCE * pace_s:
            totals.num_within += 1
        elif gap_s > LEAST_STALL_S and gap_s > STALL_RATIO * pace_s:
            totals.num_stalls += 1
        totals.spread.observe(gap_s)
        totals.error.observe(error_s)
