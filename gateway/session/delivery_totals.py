"""How answers left: gaps beside the pace that was announced for them, and what pacing cost."""

from __future__ import annotations

import math
from array import array
from collections.abc import Callable
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from engine.histogram import Histogram
from gateway.session.histogram import GAP_BOUNDS_S, LAG_BOUNDS_S
from gateway.stream.release import Departure, Reserve

TOLERANCE = 0.15  # of the announced pace
STALL_RATIO, LEAST_STALL_S = 2.0, 0.1  # a gap over both is one that readers notice
MAX_NOTED = 256  # departures
MEMORY = 1 / 2000  # weight of the newest gap in moving figures: about 30 streams' last two seconds


@dataclass(slots=True)
class MovingSpread:
    """Exponentially weighted mean and standard deviation (West 1979), many values at a time."""

    mean: float = 0.0
    _variance: float = 0.0
    _num: int = 0

    @property
    def std(self) -> float:
        return math.sqrt(self._variance)

    def observe(self, values: NDArray[np.float64]) -> None:
        """Count each of ``values [N]``, the oldest first."""
        if not len(values):
            return
        # Of one value after the other: 1, 1/2, 1/3 and so on, down to ``MEMORY``.
        gains = np.maximum(MEMORY, 1.0 / np.arange(self._num + 1, self._num + len(values) + 1))
        kept = np.cumprod(1.0 - gains[::-1])[::-1]  # by each value and those after it
        weights = gains * np.append(kept[1:], 1.0)
        steps = values - self.mean
        change = float(weights @ steps)
        second = float(kept[0]) * self._variance + float(weights @ (steps * steps))
        self.mean += change
        self._variance = max(0.0, second - change * change)
        self._num += len(values)


@dataclass(slots=True)
class DeliveryTotals:
    """One model's answers since the process began; ``gaps`` are those between departures.

    ``spread`` and ``error`` are moving figures of paced gaps and of those less their pace, seconds.
    ``num_paced`` gaps had a pace, ``num_within`` were within ``TOLERANCE`` of it. ``reserves`` are
    those of the answers under way.

    Departures are noted one by one and counted ``MAX_NOTED`` at a time: ``settle`` before anybody
    reads.
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
    _noted: array[float] = field(default_factory=lambda: array("d"))  # lag, gap, pace, lag, …

    @property
    def num_held(self) -> int:
        """Texts that wait at this moment."""
        return sum(map(len, self.reserves))

    def note(self, lag_s: float, gap_s: float, pace_s: float) -> None:
        """Something left, held for ``lag_s``, so long after what left before it, for which
        ``pace_s`` had been announced; NaN where there was no such thing."""
        self._noted.extend((lag_s, gap_s, pace_s))
        if len(self._noted) >= 3 * MAX_NOTED:
            self.settle()

    def settle(self) -> DeliveryTotals:
        """Count what was noted; returns itself."""
        if self._noted:
            lags, gaps, paces = np.frombuffer(self._noted).reshape(-1, 3).T
            self._noted = array("d")
            self.lag.observe_all(lags)
            self.gaps.observe_all(gaps[~np.isnan(gaps)])
            self._judge(gaps, paces)
        return self

    def _judge(self, gaps: NDArray[np.float64], paces: NDArray[np.float64]) -> None:
        """Compare gaps with the paces that were announced for them."""
        is_paced = ~np.isnan(gaps + paces)
        gaps, paces = gaps[is_paced], paces[is_paced]
        errors = gaps - paces
        is_stall = (gaps > LEAST_STALL_S) & (gaps > STALL_RATIO * paces)
        self.num_paced += len(gaps)
        self.num_within += int(np.count_nonzero(abs(errors) <= TOLERANCE * paces))
        self.num_stalls += int(np.count_nonzero(is_stall))
        self.spread.observe(gaps)
        self.error.observe(errors)


class DeliveryTimer:
    """Watches one answer leave, until its ``end``."""

    __slots__ = ("_last_at", "_now", "_pace_s", "_reserve", "_totals")

    def __init__(self, totals: DeliveryTotals, now: Callable[[], float], reserve: Reserve) -> None:
        totals.reserves.add(reserve)
        self._totals = totals
        self._now = now
        self._reserve = reserve
        self._last_at = math.nan
        self._pace_s = math.nan

    def depart(self, departure: Departure) -> None:
        last_at, pace_s = self._last_at, departure.pace_s
        self._last_at = now = self._now()
        self._totals.note(departure.lag_s, now - last_at, self._pace_s)
        self._pace_s = math.nan if pace_s is None else pace_s
        if departure.underrun_s > 0.0:
            self._totals.num_underruns += 1

    def end(self) -> None:
        """The answer is over, and what is left of it never leaves."""
        self._totals.reserves.discard(self._reserve)
