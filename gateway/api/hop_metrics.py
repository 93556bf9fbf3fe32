"""The families that say where the time of a picture goes, and how busy the workers are."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from itertools import accumulate

from prometheus_client.core import HistogramMetricFamily, Metric

from engine.base import ModelStatistics
from engine.histogram import Histogram
from gateway.api.delivery_metrics import buckets_of
from gateway.metrics import PREFIX, Samples, counter, gauge
from gateway.session.registry import ModelReceipts

ORDER = "order"  # the one hop that the engine does not see


def hop_families(
    models: tuple[ModelStatistics, ...], receipts: Mapping[str, ModelReceipts]
) -> Iterator[Metric]:
    """``receipts`` are those of frames, by model. Series of a version end with it."""
    family = HistogramMetricFamily(
        f"{PREFIX}hop_seconds",
        "Where results spent their time, hop by hop.",
        labels=["model", "version", "hop"],
    )
    sizes = HistogramMetricFamily(
        f"{PREFIX}batch_size", "Items that ran together.", labels=["model", "version"]
    )
    for model in models:
        for version, hops in model.hops.items():
            for hop, times_s in hops.items():
                _add(family, [model.model, version, hop], times_s)
        for version, counted in model.batch_sizes.items():
            _add(sizes, [model.model, version], counted)
    for name, each in receipts.items():
        # No version: a stream's results wait for one another, whoever made them.
        _add(family, [name, "", ORDER], each.order)
    yield family
    yield sizes
    ages: Samples = [({"model": each.model}, each.queue_age_s) for each in models]
    yield gauge("queue_age_seconds", "How long the oldest queued item has waited.", ages)
    runs: Samples = [({"model": each.model}, each.run_s) for each in models]
    yield counter("batch_run_seconds", "Seconds that batches ran, all workers together.", runs)
    cpu: Samples = [({"model": each.model}, each.workers_cpu_s) for each in models]
    yield counter("worker_cpu_seconds", "Processor time of a model's workers.", cpu)


def _add(family: HistogramMetricFamily, labels: list[str], counted: Histogram) -> None:
    buckets = buckets_of(counted.bounds, list(accumulate(counted.counts)))
    family.add_metric(labels, buckets=buckets, sum_value=counted.sum)
