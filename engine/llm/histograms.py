"""Distributions of a language model's times and lengths, in buckets fixed for all processes.

The bounds are here, without torch, because the process that exports them is not the one that
counts. A chat is smooth or not between 5 and 60 ms, so the buckets are fine there.
"""

from __future__ import annotations

from bisect import bisect_left
from collections import deque
from collections.abc import Iterable, Mapping
from types import MappingProxyType

_FINE_MS = (1, 2, 5, 8, 10, 12, 15, 18, 20, 22, 25, 28, 30, 33, 36, 40, 45, 50, 55, 60, 70, 80)
_COARSE_MS = (100, 150, 200, 300, 500, 750, 1_000, 1_500, 2_500, 5_000, 10_000, 30_000, 60_000)
SHORT_S = tuple(ms / 1000 for ms in (*_FINE_MS, *_COARSE_MS))
LONG_S = tuple(ms / 1000 for ms in (1, 2, 5, 10, 20, 50, *_COARSE_MS, 120_000, 300_000))
TOKENS = tuple(float(2**power) for power in range(15))

BOUNDS: Mapping[str, tuple[float, ...]] = MappingProxyType(
    {
        "time_to_first_token_s": LONG_S,  # from the client's submission
        "inter_token_s": SHORT_S,  # 0 for each further token of one step: bursts stay visible
        "queue_s": LONG_S,  # from the client's submission until first in a step
        "prefill_s": LONG_S,  # from then until the first token
        "decode_s": LONG_S,  # from the first token until the last
        "step_s": SHORT_S,
        "prompt_tokens": TOKENS,
        "output_tokens": TOKENS,
    }
)
WINDOW = 1024


class Histogram:
    """Bucket i counts values above the bound before it and up to ``bounds[i]``; one more counts
    what is above all bounds. ``sum`` is that of all values."""

    def __init__(self, bounds: tuple[float, ...]) -> None:
        self._bounds = bounds
        self._counts = [0] * (len(bounds) + 1)
        self.sum = 0.0

    def observe(self, value: float, times: int = 1) -> None:
        self._counts[bisect_left(self._bounds, value)] += times
        self.sum += value * times

    def cumulative(self) -> tuple[int, ...]:
        """How many values were at most each bound; the last is how many there were in all."""
        total = 0
        return tuple(total := total + count for count in self._counts)


class RecentValues:
    """The last ``WINDOW`` values, for quantiles and means that forget."""

    def __init__(self) -> None:
        self._values: deque[float] = deque(maxlen=WINDOW)

    def add(self, value: float) -> None:
        self._values.append(value)

    def quantiles(self, shares: Iterable[float]) -> list[float]:
        """Values below which each share of the others lies; 0 while there are none."""
        ordered = sorted(self._values)
        if not ordered:
            return [0.0 for _ in shares]
        last = len(ordered) - 1
        return [ordered[min(last, int(share * len(ordered)))] for share in shares]

    def mean(self) -> float:
        return sum(self._values) / len(self._values) if self._values else 0.0
