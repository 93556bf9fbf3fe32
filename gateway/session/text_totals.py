"""What answers cost their readers in time: per model, over both doors, for the metrics."""

from __future__ import annotations

import time
from bisect import bisect_left
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field

# Upper bounds, seconds; the last bucket has none. Fine where steps are: a pace of 20 to 50 tokens/s
# is told from its neighbours.
FIRST_TOKEN_BOUNDS_S = (
    *(0.005, 0.01, 0.02, 0.03, 0.05, 0.075, 0.1, 0.15, 0.2, 0.3, 0.5, 0.75),
    *(1.0, 2.0, 5.0, 10.0, 30.0, 60.0),
)
GAP_BOUNDS_S = (
    *(0.001, 0.002, 0.003, 0.004, 0.005, 0.006, 0.007, 0.008, 0.009, 0.01, 0.012, 0.015),
    *(0.018, 0.02, 0.022, 0.025, 0.028, 0.03, 0.033, 0.036, 0.04, 0.045, 0.05, 0.06, 0.08),
    *(0.1, 0.15, 0.25, 0.5, 1.0, 2.5),
)

MAX_REASONS = 64


class Histogram:
    """Counts per bucket, not cumulative; one more bucket than bounds."""

    def __init__(self, bounds: tuple[float, ...]) -> None:
        self.bounds = bounds
        self.counts = [0] * (len(bounds) + 1)
        self.sum = 0.0

    def observe(self, value: float) -> None:
        self.counts[bisect_left(self.bounds, value)] += 1
        self.sum += value


@dataclass(slots=True)
class TextTotals:
    """One model's answers since the process began.

    ``tokens`` counts every token, ``gaps`` the time between two that made text visible, as they
    came from the engine. ``endings`` counts by finish reason, or by the kind of the problem.
    """

    now: Callable[[], float] = time.monotonic  # the loop's clock counts in milliseconds
    first_token: Histogram = field(default_factory=lambda: Histogram(FIRST_TOKEN_BOUNDS_S))
    gaps: Histogram = field(default_factory=lambda: Histogram(GAP_BOUNDS_S))
    tokens: int = 0
    endings: Counter[str] = field(default_factory=Counter)

    def start(self) -> AnswerTimer:
        """A prompt has arrived."""
        return AnswerTimer(self)


class AnswerTimer:
    """Times one answer, from now on."""

    def __init__(self, totals: TextTotals) -> None:
        self._totals = totals
        self._last_at = totals.now()
        self._has_text = False

    def token(self, text: str) -> None:
        """One token was generated; ``text`` is what it made visible."""
        totals = self._totals
        totals.tokens += 1
        if not text:
            return
        now = totals.now()
        (totals.gaps if self._has_text else totals.first_token).observe(now - self._last_at)
        self._last_at, self._has_text = now, True

    def end(self, reason: str) -> None:
        """The answer is over. Engines have a few reasons; more than ``MAX_REASONS`` are not told
        apart."""
        endings = self._totals.endings
        endings[reason if reason in endings or len(endings) < MAX_REASONS else "other"] += 1
