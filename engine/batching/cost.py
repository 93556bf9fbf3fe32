"""What a batch costs on this machine: one measured curve per shape bucket. Pure."""

from __future__ import annotations

from collections.abc import Mapping

from engine.batching.curve import TOLERANCE, RunCurve, Trial
from engine.batching.samples import Samples

_LEAD_RUNS = 0.25  # share of a run by which the run before may end early
_LEAD_PREPARES = 2.0


class CostModel:
    """Predicts run times in seconds; 0.0 until something was measured.

    Bucket 0 is the shape that the warm-up measures; other buckets learn from live batches. There
    are as many curves as the caller has buckets.
    """

    def __init__(self) -> None:
        self._curves: dict[int, RunCurve] = {}
        self._overhead_s = Samples(default=0.0)
        self._prepare_s = Samples(default=0.0)

    def seed(self, run_s: Mapping[int, float]) -> None:
        """Take the warm-up's measurements, seconds by batch size; with none, bucket 0 explores."""
        self._curves[0] = RunCurve(run_s)

    def forget(self, bucket: int) -> None:
        """The bucket stands for another shape from now on."""
        self._curves.pop(bucket, None)

    def observe_run(self, size: int, run_s: float, bucket: int = 0) -> None:
        """A batch of ``size`` items ran for ``run_s`` seconds."""
        self._curve(bucket).observe(size, run_s)

    def observe_overhead(self, overhead_s: float) -> None:
        """A batch was answered so much later than its wait for the worker and its run explain."""
        self._overhead_s.add(max(0.0, overhead_s))

    def observe_prepare(self, prepare_s: float) -> None:
        """One item was prepared for so long before its batch ran."""
        self._prepare_s.add(prepare_s)

    def predict(self, size: int, bucket: int = 0) -> float:
        """Median run time of a batch of ``size`` items."""
        return self._curve(bucket).predict(size)

    def predict_answer(self, size: int, bucket: int = 0) -> float:
        """Time from an idle worker to the last answer that nine in ten batches keep.

        Includes what the run time leaves out: copies, decoding, answering. Without it a busy
        worker would get items that expire on its doorstep.
        """
        return self._curve(bucket).predict_high(size) + self._overhead_s.high

    def lead_s(self, size: int, bucket: int = 0) -> float:
        """How long before a worker is free its next batch of ``size`` should be bound, so that it
        is prepared in time although run times vary."""
        prepare_s = size * self._prepare_s.high
        return _LEAD_RUNS * self.predict(size, bucket) + _LEAD_PREPARES * prepare_s

    def best_batch_size(
        self, ceiling: int, bucket: int = 0, *, tolerance: float = TOLERANCE
    ) -> int:
        """See :meth:`RunCurve.best_batch_size`; at most ``ceiling``."""
        return self._curve(bucket).best_batch_size(ceiling, tolerance)

    def trial_of(self, size: int, ceiling: int, bucket: int = 0) -> Trial | None:
        """See :meth:`RunCurve.trial_of`."""
        return self._curve(bucket).trial_of(size, ceiling)

    def _curve(self, bucket: int) -> RunCurve:
        curve = self._curves.get(bucket)
        if curve is None:
            curve = self._curves[bucket] = RunCurve()
        return curve
