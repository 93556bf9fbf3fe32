"""Counts of values per bucket. Pure."""

from __future__ import annotations

from bisect import bisect_left

import numpy as np
from numpy.typing import NDArray

# Upper bounds, seconds, of what happens to one picture.
HOP_BOUNDS_S = (
    *(0.0001, 0.00025, 0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05),
    *(0.1, 0.25, 0.5, 1.0, 2.5),
)
BATCH_SIZE_BOUNDS = (1.0, 2.0, 4.0, 8.0, 16.0, 32.0, 64.0)


class Histogram:
    """Counts per bucket, not cumulative; one more bucket than bounds."""

    def __init__(self, bounds: tuple[float, ...]) -> None:
        self.bounds = bounds
        self.counts = [0] * (len(bounds) + 1)
        self.sum = 0.0

    def observe(self, value: float) -> None:
        self.counts[bisect_left(self.bounds, value)] += 1
        self.sum += value

    def observe_all(self, values: NDArray[np.float64]) -> None:
        """Count each of ``values [N]``."""
        indexes = np.searchsorted(self.bounds, values)  # as ``bisect_left``
        counts = np.bincount(indexes, minlength=len(self.counts)).tolist()
        self.counts = [a + b for a, b in zip(self.counts, counts, strict=True)]
        self.sum += float(values.sum())

    def add(self, other: Histogram) -> None:
        """Count what ``other`` has, which has the same bounds."""
        self.counts = [a + b for a, b in zip(self.counts, other.counts, strict=True)]
        self.sum += other.sum
