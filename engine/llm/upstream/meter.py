"""What calls to an upstream server take, for metrics. Pure: times are arguments."""

from __future__ import annotations

from dataclasses import dataclass

from engine.llm.histograms import BOUNDS, Histogram, RecentValues
from engine.llm.messages import Finish, Gauges, Submit

_MEASURED = (
    "time_to_first_token_s",
    "inter_token_s",
    "queue_s",
    "decode_s",
    "prompt_tokens",
    "output_tokens",
)


@dataclass(slots=True)
class _Call:
    arrived_at: float
    first_at: float | None = None
    last_at: float = 0.0


class UpstreamMeter:
    """Pieces count as tokens, and each as a step: what the server batches is not seen here.

    Holds one entry per running call.
    """

    def __init__(self) -> None:
        self.steps = 0
        self._prompt_tokens = 0
        self._cached_tokens = 0
        self._calls: dict[int, _Call] = {}
        self._queue_s = RecentValues()
        self._histograms = {name: Histogram(BOUNDS[name]) for name in _MEASURED}

    def note_start(self, submit: Submit, now: float) -> None:
        arrived_at = submit.arrived_us / 1e6
        self._calls[submit.key] = _Call(arrived_at)
        self._queue_s.add(now - arrived_at)
        self._histograms["queue_s"].observe(now - arrived_at)

    def note_piece(self, key: int, now: float) -> None:
        call = self._calls[key]
        self.steps += 1
        if call.first_at is None:
            call.first_at = now
            self._histograms["time_to_first_token_s"].observe(now - call.arrived_at)
        else:
            self._histograms["inter_token_s"].observe(now - call.last_at)
        call.last_at = now

    def note_finish(self, finish: Finish) -> None:
        self._prompt_tokens += finish.prompt_tokens
        self._cached_tokens += finish.cached_tokens
        self._histograms["prompt_tokens"].observe(finish.prompt_tokens)
        self._histograms["output_tokens"].observe(finish.completion_tokens)

    def note_end(self, key: int, now: float) -> None:
        """The call is over, whatever came of it."""
        call = self._calls.pop(key)
        if call.first_at is not None:
            self._histograms["decode_s"].observe(now - call.first_at)

    def gauges(self, running: int, waiting: int) -> Gauges:
        (queue_p99_s,) = self._queue_s.quantiles((0.99,))
        return Gauges(
            running=running,
            waiting=waiting,
            blocks_total=0,
            blocks_owned=0,
            blocks_cached=0,
            fragmentation=0.0,
            steps=self.steps,
            tokens=self.steps,
            prompt_tokens=self._prompt_tokens,
            cached_prompt_tokens=self._cached_tokens,
            preemptions=0,
            starvations=0,
            swap_s=0.0,
            queue_p99_s=queue_p99_s,
            batch_mean=float(running),
            step_p50_s=0.0,
            step_p99_s=0.0,
            histograms={name: h.cumulative() for name, h in self._histograms.items()},
            histogram_sums={name: h.sum for name, h in self._histograms.items()},
        )
