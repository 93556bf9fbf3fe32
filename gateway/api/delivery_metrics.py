"""The families of delivered text: how it left, beside the pace that was announced for it."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import accumulate

from prometheus_client.core import HistogramMetricFamily, Metric

from engine.histogram import Histogram
from gateway.metrics import PREFIX, Samples, counter, gauge
from gateway.session.delivery_totals import DeliveryTotals
from gateway.session.text_totals import TextTotals


def delivery_families(models: Mapping[str, TextTotals]) -> Iterator[Metric]:
    """What pacing did and what it cost; the engine's own gaps stand beside them."""

    def each(read: Callable[[DeliveryTotals], float]) -> Samples:
        return [({"model": name}, read(totals.delivery)) for name, totals in models.items()]

    gaps = {name: totals.delivery.gaps for name, totals in models.items()}
    lags = {name: totals.delivery.lag for name, totals in models.items()}
    yield histogram("text_delivered_gap_seconds", "Between two events of an answer.", gaps)
    yield histogram("text_pacing_delay_seconds", "How long text was held before it left.", lags)
    help_text = "Mean of the latest paced gaps."
    yield gauge("text_delivered_gap_mean_seconds", help_text, each(lambda d: d.spread.mean))
    help_text = "Standard deviation of the latest paced gaps."
    yield gauge("text_delivered_gap_std_seconds", help_text, each(lambda d: d.spread.std))
    help_text = "Standard deviation of the latest paced gaps, by their mean."
    yield gauge("text_delivered_gap_cv", help_text, each(_variation))
    help_text = "Standard deviation of the latest gaps less the pace announced for them."
    yield gauge("text_pace_error_std_seconds", help_text, each(lambda d: d.error.std))
    yield counter("text_paced_gaps", "Gaps with a pace.", each(lambda d: d.num_paced))
    help_text = "Those within 15 % of their pace."
    yield counter("text_paced_gaps_within", help_text, each(lambda d: d.num_within))
    help_text = "Paced gaps over 100 ms and twice their pace."
    yield counter("text_stalls", help_text, each(lambda d: d.num_stalls))
    help_text = "Tokens that came after they were due."
    yield counter("text_underruns", help_text, each(lambda d: d.num_underruns))
    yield gauge("text_reserve_tokens", "Texts held at the moment.", each(lambda d: d.num_held))
    triggers: Samples = [
        ({"model": name, "trigger": trigger}, count)
        for name, totals in models.items()
        for trigger, count in sorted(totals.triggers.items())
    ]
    yield counter("text_pacer_triggers", "What pacers noticed and acted on.", triggers)


def histogram(name: str, help_text: str, models: Mapping[str, Histogram]) -> Metric:
    """A family ``clawstream_NAME`` with one histogram per model."""
    family = HistogramMetricFamily(PREFIX + name, help_text, labels=["model"])
    for model, counted in models.items():
        buckets = buckets_of(counted.bounds, list(accumulate(counted.counts)))
        family.add_metric([model], buckets=buckets, sum_value=counted.sum)
    return family


def buckets_of(bounds: Sequence[float], cumulative: Sequence[float]) -> list[tuple[str, float]]:
    """Upper bounds with cumulative counts, as Prometheus wants them."""
    return list(zip((*map(str, bounds), "+Inf"), cumulative, strict=True))


def _variation(delivery: DeliveryTotals) -> float:
    mean = delivery.spread.mean
    return delivery.spread.std / mean if mean > 0 else 0.0
