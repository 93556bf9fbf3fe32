"""The families of language models: receipts of prompts, answers in time, the scheduler's gauges."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence

from prometheus_client.core import GaugeMetricFamily, HistogramMetricFamily, Metric

from engine.base import LlmStatistics, ModelStatistics
from engine.llm.histograms import BOUNDS
from gateway.api.delivery_metrics import buckets_of, delivery_families, histogram
from gateway.metrics import PREFIX, Samples, counter, gauge
from gateway.session.registry import Receipts, SessionStatistics
from gateway.session.text_totals import TextTotals

# Operators of language models know these under exactly these names, so they have no prefix.
FIELD_GAUGES: Mapping[str, str] = {
    "scheduler_queue_latency_99": "Seconds from submission to the first step, 99th percentile.",
    "kv_cache_utilization": "Share of the KV cache's blocks that running sequences own.",
    "batch_size_avg": "Sequences in a step, mean of the recent ones.",
    "preemption_count_per_sec": "Running sequences that had to make room, per second.",
    "scheduler_starvation_count": "Sequences that waited beyond their ageing bound, so far.",
    "memory_fragmentation": "Share of the owned cache slots that hold no token.",
    "context_switch_overhead": "Share of the time that went into moving preempted sequences.",
}
_GAUGES: Mapping[str, str] = {
    "running": "Sequences in steps.",
    "waiting": "Prompts that wait for their first step.",
    "tokens_per_s": "Tokens generated per second, over the last seconds.",
    "blocks_total": "Blocks of the KV cache.",
    "blocks_cached": "Blocks that hold a known beginning and nobody owns.",
}
_COUNTERS: Mapping[str, str] = {
    "steps": "Steps run.",
    "tokens": "Tokens generated.",
    "prompt_tokens": "Tokens of prompts.",
    "cached_prompt_tokens": "Tokens of prompts that were in the cache.",
    "preemptions": "Running sequences that had to make room.",
    "drafted": "Tokens proposed by look-ahead.",
    "drafts_accepted": "Those of them that were right.",
}
_HISTOGRAMS: Mapping[str, tuple[str, str]] = {
    "time_to_first_token_s": ("first_token_seconds", "Submission until the first token."),
    "inter_token_s": ("inter_token_seconds", "Between two tokens of a sequence."),
    "queue_s": ("queue_seconds", "Submission until the first step."),
    "prefill_s": ("prefill_seconds", "First step until the first token."),
    "decode_s": ("decode_seconds", "First token until the last."),
    "step_s": ("step_seconds", "One step."),
    "prompt_tokens": ("prompt_length_tokens", "Length of prompts."),
    "output_tokens": ("output_length_tokens", "Length of answers."),
}


def prompt_families(now: SessionStatistics) -> Iterator[Metric]:
    """What clients were told, over WebSocket; and their answers in time, over both doors."""
    yield from _receipt_families(now.prompts)
    yield from _text_families(now.texts)


def llm_families(models: Sequence[ModelStatistics]) -> Iterator[Metric]:
    """What the engines' schedulers say of themselves; nothing while no model has one."""
    found = {model.model: model.llm for model in models if model.llm is not None}
    if not found:
        return
    for name, help_text in FIELD_GAUGES.items():
        family = GaugeMetricFamily(name, help_text, labels=["model"])
        for model, llm in found.items():
            family.add_metric([model], getattr(llm, name))
        yield family
    for name, help_text in _GAUGES.items():
        # Only counters end in ``_total``, in Prometheus' world.
        yield gauge(f"llm_{name.removesuffix('_total')}", help_text, _each(found, name))
    weights: Samples = [
        ({"model": model, "weights": llm.weights}, 1.0)
        for model, llm in found.items()
        if llm.weights
    ]
    yield gauge("llm_weights", "1 for the precision that steps run with now.", weights)
    for name, help_text in _COUNTERS.items():
        yield counter(f"llm_{name}", help_text, _each(found, name))
    for name, (exported, help_text) in _HISTOGRAMS.items():
        yield _worker_histogram(name, exported, help_text, found)


def _receipt_families(models: Mapping[str, Receipts]) -> Iterator[Metric]:
    """``accepted = results + dropped + errors + cancelled + in_flight``, per model."""

    def each(read: Callable[[Receipts], float]) -> Samples:
        return [({"model": name}, read(model)) for name, model in models.items()]

    yield counter("prompts_received", "Prompts that arrived.", each(lambda m: m.received))
    yield counter("prompts_refused", "Prompts refused on arrival.", each(lambda m: m.refused))
    yield counter("prompts_accepted", "Prompts owed an end.", each(lambda m: m.accepted))
    yield counter("prompt_results", "Prompts answered to the end.", each(lambda m: m.results))
    yield counter("prompt_errors", "Prompts answered by an error.", each(lambda m: m.errors))
    yield counter("prompts_cancelled", "Prompts withdrawn.", each(lambda m: m.cancelled))
    yield gauge("prompts_in_flight", "Prompts not answered yet.", each(lambda m: m.in_flight))
    dropped: Samples = [
        ({"model": name, "reason": reason}, count)
        for name, model in models.items()
        for reason, count in sorted(model.dropped.items())
    ]
    yield counter("prompts_dropped", "Prompts given up, by reason.", dropped)


def _text_families(models: Mapping[str, TextTotals]) -> Iterator[Metric]:
    tokens: Samples = [({"model": name}, totals.tokens) for name, totals in models.items()]
    yield counter("text_tokens", "Tokens that came from the engine.", tokens)
    endings: Samples = [
        ({"model": name, "reason": reason}, count)
        for name, totals in models.items()
        for reason, count in sorted(totals.endings.items())
    ]
    yield counter("text_answers", "Answers that are over, by reason or problem.", endings)
    firsts = {name: totals.first_token for name, totals in models.items()}
    gaps = {name: totals.gaps for name, totals in models.items()}
    help_text = "Arrival of a prompt until its first visible token."
    yield histogram("text_first_token_seconds", help_text, firsts)
    yield histogram("text_gap_seconds", "Between two visible tokens of an answer.", gaps)
    yield from delivery_families(models)


def _worker_histogram(
    name: str, exported: str, help_text: str, models: Mapping[str, LlmStatistics]
) -> Metric:
    family = HistogramMetricFamily(f"{PREFIX}llm_{exported}", help_text, labels=["model"])
    for model, llm in models.items():
        counts = llm.histograms.get(name)
        if counts is not None and len(counts) == len(BOUNDS[name]) + 1:
            buckets = buckets_of(BOUNDS[name], counts)
            family.add_metric([model], buckets=buckets, sum_value=llm.histogram_sums.get(name))
    return family


def _each(models: Mapping[str, LlmStatistics], name: str) -> Samples:
    return [({"model": model}, getattr(llm, name)) for model, llm in models.items()]
