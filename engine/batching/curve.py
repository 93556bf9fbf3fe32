"""How the run time of one shape bucket grows with the batch size: measured, never a constant.

Two factors are kept apart. The *shape* of the curve says how run time grows with the size; the
*load* says how much slower the machine is now than when the shape was measured, and live batches
of any size move it. A busy machine therefore changes the predictions but not the verdict on the
best size: comparing a fresh measurement of one size with a stale one of another would make it flip
with every change of load. The shape itself is corrected only by batches of different sizes that
ran close to one another.
"""

from __future__ import annotations

import statistics
from bisect import bisect_left
from collections import Counter, deque
from collections.abc import Mapping
from typing import NamedTuple

from engine.batching.samples import WINDOW, Samples

TOLERANCE = 0.05  # a smaller batch may cost this share of the best throughput
RUNS_PER_SIZE = 3  # before a size that no warm-up measured is judged
# Share of a disagreement by which one batch corrects the shape: that of a mean of all, as long as
# there are few, because a warm-up beside a busy machine can be far off.
_LEAST_GAIN = 0.1
_WITNESSES = 5  # batches of other sizes in the window that a correction needs
_SMALLEST_RUN_S = 1e-9


class Trial(NamedTuple):
    """A batch size worth another look; ``loss`` is the share of throughput that a batch of it is
    expected to cost, if the curve is right."""

    size: int
    loss: float


class RunCurve:
    """Run time by batch size, in seconds; 0.0 until something was measured.

    ``measured_run_s`` is a warm-up's measurement. Without one the curve is *explored*: each of the
    sizes 1, 2, 4, … is run a few times before the next one is allowed, as long as it pays.
    """

    def __init__(self, measured_run_s: Mapping[int, float] | None = None) -> None:
        measured = measured_run_s or {}
        self._shape = {size: max(run_s, _SMALLEST_RUN_S) for size, run_s in measured.items()}
        self._sizes = sorted(self._shape)
        self._explores = not measured
        self._explored: dict[int, Samples] = {}  # by size, while exploring
        self._load = Samples(default=1.0, prior=1.0 if measured else None)
        self._best: dict[tuple[int, float], int] = {}  # until the shape changes
        self._num_corrections: Counter[int] = Counter()  # by size
        self._recent: deque[tuple[int, float]] = deque(maxlen=WINDOW)  # (size, run / shape)

    def observe(self, size: int, run_s: float) -> None:
        """A batch of ``size`` items ran for ``run_s`` seconds."""
        run_s = max(run_s, _SMALLEST_RUN_S)
        if self._explores:
            self._explore(size, run_s)
        ratio = run_s / self._shape_at(size)
        if size in self._shape:
            self._correct(size, ratio)
        self._recent.append((size, ratio))
        self._load.add(ratio)

    def predict(self, size: int) -> float:
        """Median run time of a batch of ``size`` items."""
        return self._shape_at(size) * self._load.median if self._sizes else 0.0

    def predict_high(self, size: int) -> float:
        """Run time that nine in ten batches of ``size`` items keep."""
        return self._shape_at(size) * self._load.high if self._sizes else 0.0

    def best_batch_size(self, ceiling: int, tolerance: float = TOLERANCE) -> int:
        """The smallest measured size <= ``ceiling`` whose throughput is within ``tolerance`` of
        the best; while exploring, the size that is to be measured next.
        """
        best = self._best.get((ceiling, tolerance))
        if best is None:
            untried = self._untried(ceiling) if self._explores else None
            best = untried or self._most_worthwhile(ceiling, tolerance)
            self._best[ceiling, tolerance] = best
        return best

    def trial_of(self, size: int, ceiling: int) -> Trial | None:
        """The next larger measured size <= ``ceiling``, which may turn out to be better."""
        larger = next((each for each in self._sizes if each > size), None)
        if larger is None or larger > ceiling or self._explores:
            return None
        loss = self._shape[larger] / larger * size / self._shape_at(size) - 1.0
        return Trial(larger, max(0.0, loss))

    def _most_worthwhile(self, ceiling: int, tolerance: float) -> int:
        sizes = [size for size in self._sizes if size <= ceiling and self._is_judged(size)]
        throughput = {size: size / self._shape[size] for size in sizes}
        enough = max(throughput.values(), default=0.0) * (1 - tolerance)
        return next((size for size in sizes if throughput[size] >= enough), ceiling)

    def _untried(self, ceiling: int) -> int | None:
        """The next size to try; None when the last doubling did not pay or all are measured."""
        rate = 0.0
        for size in doubling_sizes(ceiling):
            runs = self._explored.get(size)
            if runs is None or len(runs) < RUNS_PER_SIZE:
                return size
            if size / runs.median < rate * (1 + TOLERANCE):
                return None
            rate = size / runs.median
        return None

    def _explore(self, size: int, run_s: float) -> None:
        runs = self._explored.setdefault(size, Samples(default=run_s))
        if len(runs) < RUNS_PER_SIZE:
            # As if measured when the load was 1, like every other size.
            load = self._load.median if self._shape and size not in self._shape else 1.0
            runs.add(run_s / load)
            self._shape[size] = runs.median
            self._sizes = sorted(self._shape)
            self._best.clear()

    def _is_judged(self, size: int) -> bool:
        return not self._explores or len(self._explored[size]) == RUNS_PER_SIZE

    def _correct(self, size: int, ratio: float) -> None:
        """If this size disagrees with the others that ran lately, the shape is wrong, not the
        load; it moves a little towards them."""
        witnesses = [other_ratio for other, other_ratio in self._recent if other != size]
        if len(witnesses) >= _WITNESSES:
            self._num_corrections[size] += 1
            gain = max(_LEAST_GAIN, 1.0 / (1 + self._num_corrections[size]))
            self._shape[size] *= (ratio / statistics.median(witnesses)) ** gain
            self._best.clear()

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


def doubling_sizes(ceiling: int) -> list[int]:
    """1, 2, 4, … and ``ceiling`` itself."""
    sizes = [1 << power for power in range(ceiling.bit_length())]
    return sizes if sizes[-1] == ceiling else [*sizes, ceiling]
