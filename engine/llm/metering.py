"""How long steps, prompts and answers take, and how long they are. Pure: times are arguments."""

from __future__ import annotations

from engine.llm.generation import Generation
from engine.llm.histograms import BOUNDS, Histogram, RecentValues


class Meter:
    """Histograms since the start, and windows of the last ``WINDOW`` values. One thread."""

    def __init__(self) -> None:
        self._histograms = {name: Histogram(bounds) for name, bounds in BOUNDS.items()}
        self._queue_s = RecentValues()
        self._step_s = RecentValues()
        self._batch_sizes = RecentValues()

    def note_step(self, duration_s: float, batch_size: int) -> None:
        self._step_s.add(duration_s)
        self._batch_sizes.add(batch_size)
        self._observe("step_s", duration_s)

    def note_start(self, generation: Generation, now: float) -> None:
        """Its first step begins; once per generation."""
        generation.started_at = now
        waited_s = now - generation.sequence.arrived_at
        self._queue_s.add(waited_s)
        self._observe("queue_s", waited_s)
        self._observe("prompt_tokens", generation.sequence.num_prompt)

    def note_tokens(self, generation: Generation, count: int, now: float) -> None:
        """A step gave it ``count`` tokens, at least one."""
        if generation.last_token_at is not None:
            self._observe("inter_token_s", now - generation.last_token_at)
        else:
            assert generation.started_at is not None
            generation.first_token_at = now
            self._observe("time_to_first_token_s", now - generation.sequence.arrived_at)
            self._observe("prefill_s", now - generation.started_at)
        if count > 1:
            self._observe("inter_token_s", 0.0, count - 1)
        generation.last_token_at = now

    def note_end(self, generation: Generation) -> None:
        """It has all its tokens, or as many as it will get."""
        if generation.first_token_at is None or generation.last_token_at is None:
            return
        self._observe("decode_s", generation.last_token_at - generation.first_token_at)
        self._observe("output_tokens", len(generation.sequence.output_ids))

    def queue_p99_s(self) -> float:
        return self._queue_s.quantiles([0.99])[0]

    def step_quantiles_s(self) -> tuple[float, float]:
        """The median and the 99th percentile."""
        median, high = self._step_s.quantiles([0.5, 0.99])
        return median, high

    def mean_batch_size(self) -> float:
        return self._batch_sizes.mean()

    def histograms(self) -> dict[str, tuple[int, ...]]:
        return {name: histogram.cumulative() for name, histogram in self._histograms.items()}

    def histogram_sums(self) -> dict[str, float]:
        return {name: histogram.sum for name, histogram in self._histograms.items()}

    def _observe(self, name: str, value: float, times: int = 1) -> None:
        self._histograms[name].observe(max(0.0, value), times)
