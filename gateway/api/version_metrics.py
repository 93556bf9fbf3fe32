"""The families of versions and workers: what was replaced, reloaded and rolled back."""

from __future__ import annotations

from collections.abc import Iterator

from prometheus_client.core import Metric

from engine.base import ModelStatistics
from gateway.metrics import Samples, counter, gauge


def version_families(models: tuple[ModelStatistics, ...]) -> Iterator[Metric]:
    share: Samples = [({"model": model.model}, model.worker_memory_share) for model in models]
    help_text = "Own memory of the fullest worker, as a share of max_worker_memory_mb; 0: no limit."
    yield gauge("worker_memory_ratio", help_text, share)
    replaced: Samples = [
        ({"model": model.model, "cause": cause}, count)
        for model in models
        for cause, count in sorted(model.workers_replaced.items())
    ]
    yield counter("workers_replaced", "Workers replaced on purpose, by cause.", replaced)
    reloads: Samples = [
        ({"model": model.model, "outcome": outcome}, count)
        for model in models
        for outcome, count in sorted(model.reloads.items())
    ]
    yield counter("model_reloads", "Reloads, by how they ended.", reloads)
    # A version can be there twice while it is loaded again; one sample tells the stronger role.
    roles = {
        (model.model, each.version): each.state
        for model in models
        for each in reversed(model.versions)
    }
    versions: Samples = [
        ({"model": model, "version": version, "state": state}, 1.0)
        for (model, version), state in sorted(roles.items())
    ]
    yield gauge("model_version", "1 for each version in memory or rejected, by state.", versions)
