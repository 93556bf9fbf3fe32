"""From a worker's snapshots to statistics that outlive the worker. Pure."""

from __future__ import annotations

from collections import Counter, deque
from dataclasses import replace

from engine.base import LlmStatistics
from engine.llm.messages import Gauges, LlmReady

WINDOW_S = 10.0  # of rates and shares
MAX_SAMPLES = 512
COUNTERS = (
    "steps",
    "tokens",
    "prompt_tokens",
    "cached_prompt_tokens",
    "preemptions",
    "starvations",
    "drafted",
    "accepted",
)


class GaugeLog:
    """Keeps one model's last snapshots, and the totals of its workers that are gone.

    Times are seconds on any one clock.
    """

    def __init__(self) -> None:
        self._samples: deque[tuple[float, Gauges]] = deque(maxlen=MAX_SAMPLES)
        self._before: Counter[str] = Counter()  # counters of the workers before this one
        self._histograms_before: dict[str, tuple[int, ...]] = {}
        self._sums_before: dict[str, float] = {}

    def add(self, gauges: Gauges, now: float) -> None:
        self._samples.append((now, gauges))
        self._forget_old(now)

    def end_worker(self) -> None:
        """The worker is gone, its counters stand."""
        if self._samples:
            _, last = self._samples[-1]
            self._before += self._counters(last)
            self._histograms_before = self._histograms(last)
            self._sums_before = self._sums(last)
            self._samples.clear()

    def queue_p99_s(self) -> float:
        return self._samples[-1][1].queue_p99_s if self._samples else 0.0

    def statistics(self, ready: LlmReady | None, now: float) -> LlmStatistics:
        """``ready`` is what the worker said of itself, None without one."""
        self._forget_old(now)
        totals, histograms = self._before, dict(self._histograms_before)
        sums = dict(self._sums_before)
        if self._samples:
            last = self._samples[-1][1]
            totals, histograms = totals + self._counters(last), self._histograms(last)
            sums = self._sums(last)
        weights = ready.weights if ready is not None else ""
        if ready is not None and self._samples and self._samples[-1][1].is_cheaper:
            weights = ready.cheaper_weights
        statistics = LlmStatistics(
            device=ready.device if ready is not None else "",
            weights=weights,
            scheduler_starvation_count=totals["starvations"],
            steps=totals["steps"],
            tokens=totals["tokens"],
            prompt_tokens=totals["prompt_tokens"],
            cached_prompt_tokens=totals["cached_prompt_tokens"],
            preemptions=totals["preemptions"],
            drafted=totals["drafted"],
            drafts_accepted=totals["accepted"],
            histograms=histograms,
            histogram_sums=sums,
        )
        return self._with_gauges(statistics, now) if self._samples else statistics

    def _with_gauges(self, statistics: LlmStatistics, now: float) -> LlmStatistics:
        began_at, first = self._samples[0]
        last = self._samples[-1][1]
        elapsed_s = max(now - began_at, 1e-3)
        return replace(
            statistics,
            running=last.running,
            waiting=last.waiting,
            scheduler_queue_latency_99=last.queue_p99_s,
            kv_cache_utilization=last.blocks_owned / max(1, last.blocks_total),
            batch_size_avg=last.batch_mean,
            preemption_count_per_sec=(last.preemptions - first.preemptions) / elapsed_s,
            memory_fragmentation=last.fragmentation,
            context_switch_overhead=min(1.0, (last.swap_s - first.swap_s) / elapsed_s),
            tokens_per_s=(last.tokens - first.tokens) / elapsed_s,
            step_p50_s=last.step_p50_s,
            step_p99_s=last.step_p99_s,
            blocks_total=last.blocks_total,
            blocks_cached=last.blocks_cached,
        )

    def _forget_old(self, now: float) -> None:
        """Keep one sample from before the window, so that the rates cover all of it."""
        while len(self._samples) > 1 and self._samples[1][0] <= now - WINDOW_S:
            self._samples.popleft()

    def _counters(self, gauges: Gauges) -> Counter[str]:
        return Counter({name: getattr(gauges, name) for name in COUNTERS})

    def _histograms(self, gauges: Gauges) -> dict[str, tuple[int, ...]]:
        merged = dict(self._histograms_before)
        for name, counts in gauges.histograms.items():
            before = merged.get(name, (0,) * len(counts))
            merged[name] = tuple(a + b for a, b in zip(before, counts, strict=True))
        return merged

    def _sums(self, gauges: Gauges) -> dict[str, float]:
        merged = dict(self._sums_before)
        for name, value in gauges.histogram_sums.items():
            merged[name] = merged.get(name, 0.0) + value
        return merged
