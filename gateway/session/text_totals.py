"""What answers cost their readers in time: per model, over both doors, for the metrics."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field

from engine.histogram import Histogram
from gateway.session.delivery_totals import DeliveryTimer, DeliveryTotals
from gateway.session.histogram import FIRST_TOKEN_BOUNDS_S, GAP_BOUNDS_S
from gateway.stream.release import Reserve

MAX_REASONS = 64


@dataclass(slots=True)
class TextTotals:
    """One model's answers since the process began.

    ``tokens`` counts every token, ``gaps`` the time between two that made text visible, as they
    came from the engine; ``delivery`` is about how they left. ``endings`` counts by finish reason,
    or by the kind of the problem, ``triggers`` what pacers noticed and acted on, by name.
    """

    now: Callable[[], float] = time.monotonic  # the loop's clock counts in milliseconds
    first_token: Histogram = field(default_factory=lambda: Histogram(FIRST_TOKEN_BOUNDS_S))
    gaps: Histogram = field(default_factory=lambda: Histogram(GAP_BOUNDS_S))
    tokens: int = 0
    endings: Counter[str] = field(default_factory=Counter)
    triggers: Counter[str] = field(default_factory=Counter)
    _delivery: DeliveryTotals = field(default_factory=DeliveryTotals)

    @property
    def delivery(self) -> DeliveryTotals:
        """Of all that has left until now."""
        return self._delivery.settle()

    def start(self) -> AnswerTimer:
        """A prompt has arrived."""
        return AnswerTimer(self)

    def start_delivery(self, reserve: Reserve) -> DeliveryTimer:
        """Its answer begins to leave, from ``reserve``."""
        return DeliveryTimer(self._delivery, self.now, reserve)


class AnswerTimer:
    """Times one answer, from now on."""

    __slots__ = ("_has_text", "_last_at", "_totals")

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
