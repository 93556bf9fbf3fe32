"""What a batch costs on this machine: measured, never a constant.

Two factors are kept apart. The *shape* says how run time grows with the batch size; warm-up
measures it, on a quiet worker. The *load* says how much slower the machine is now than it was
then; live batches of any size move it. A busy machine therefore changes the predictions, but not
the verdict on the best batch size: comparing a fresh measurement of one size with a stale one of
another would make it flip with every change of load.
"""

from __future__ import annotations

from bisect import bisect_left
from collections import deque
from collections.abc import Mapping

_WINDOW = 15  # samples that an estimate looks back on
_TOLERANCE = 0.05  # a smaller batch may cost this share of the best throughput
_SMALLEST_RUN_S = 1e-9


class CostModel:
    """Predicts run times in seconds; 0.0 until something was measured."""

    def __init__(self) -> None:
        self._shape: dict[int, float] = {}
        self._sizes: list[int] = []  # of the shape, rising
        self._is_seeded = False
        self._load = _Samples(initial=1.0)
        self._overhead_s = _Samples(initial=0.0)

    def seed(self, run_s: Mapping[int, float]) -> None:
        """Take the warm-up's measurements, seconds by batch size, as the shape."""
        self._set_shape(run_s)
        self._is_seeded = bool(run_s)

    def observe_run(self, size: int, run_s: float) -> None:
        """A batch of ``size`` items ran for ``run_s`` seconds."""
        if not self._sizes:
            self._set_shape({size: run_s})
        self._load.add(run_s / self._shape_at(size))

    def observe_answer(self, size: int, answer_s: float) -> None:
        """An item in a batch of ``size`` was answered ``answer_s`` seconds after dispatch."""
        self._overhead_s.add(max(0.0, answer_s - self.predict(size)))

    def predict(self, size: int) -> float:
        """Median run time of a batch of ``size`` items, in seconds."""
        return self._shape_at(size) * self._load.median if self._sizes else 0.0

    def predict_answer(self, size: int) -> float:
        """Time from dispatch to answer that nine in ten keep, in seconds.

        Includes what the run time leaves out: copies, decoding, and waiting in the worker behind
        the batch before. Without it a busy worker would get items that expire on its doorstep.
        """
        return self.predict(size) + self._overhead_s.high

    def best_batch_size(self, ceiling: int) -> int:
        """The smallest measured size <= ``ceiling`` whose throughput is within 5 % of the best;
        ``ceiling`` itself until a warm-up was measured.
        """
        sizes = [size for size in self._sizes if size <= ceiling]
        if not self._is_seeded or not sizes:
            return ceiling
        throughput = {size: size / self._shape[size] for size in sizes}
        enough = max(throughput.values()) * (1 - _TOLERANCE)
        return next(size for size in sizes if throughput[size] >= enough)

    def _set_shape(self, run_s: Mapping[int, float]) -> None:
        self._shape = {size: max(time, _SMALLEST_RUN_S) for size, time in run_s.items()}
        self._sizes = sorted(self._shape)

    def _shape_at(self, size: int) -> float:
        """Straight lines between measured sizes, proportional beyond the largest."""
        known = self._shape.get(size)
        if known is not None:
            return known
        right = bisect_left(self._sizes, size)
        if right == 0:
            return self._shape[self._sizes[0]]
        low = self._sizes[right - 1]
        if right == len(self._sizes):
            return self._shape[low] * size / low
        high = self._sizes[right]
        share = (size - low) / (high - low)
        return self._shape[low] + share * (self._shape[high] - self._shape[low])


class _Samples:
    """Order statistics of the last few samples: one outlier in a full window moves neither."""

    def __init__(self, initial: float) -> None:
        self._values: deque[float] = deque(maxlen=_WINDOW)
        self.median = initial
        self.high = initial  # nine in ten samples are at most this

    def add(self, value: float) -> None:
        self._values.append(value)
        ordered = sorted(self._values)
        self.median = ordered[len(ordered) // 2]
        self.high = ordered[int(0.9 * len(ordered))]
