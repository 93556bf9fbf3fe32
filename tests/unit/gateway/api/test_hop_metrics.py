"""Hop times and batch sizes are told by version, and no version that is gone is left behind."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from engine.batching.hops import Hops
from engine.types import Timing
from gateway.api.hop_metrics import hop_families
from gateway.session.registry import SessionRegistry
from tests.fakes.engine import FakeEngine

pytestmark = pytest.mark.unit


def hops(*run_us: int) -> Hops:
    found = Hops()
    for each in run_us:
        found.observe(Timing(run=each))
        found.observe_batch(2)
    return found


def samples(hops: dict[str, Hops], registry: SessionRegistry | None = None) -> dict[str, Any]:
    """Values by name and labels, buckets left out."""
    (model,) = FakeEngine(("m",)).statistics().models
    told = replace(
        model,
        hops={version: each.times_s for version, each in hops.items()},
        batch_sizes={version: each.batch_sizes for version, each in hops.items()},
    )
    receipts = {} if registry is None else registry.statistics().models
    return {
        f"{each.name} {' '.join(each.labels.values())}": each.value
        for family in hop_families((told,), receipts)
        for each in family.samples
        if not each.name.endswith("_bucket")
    }


def test_hops_and_batch_sizes_carry_the_version_that_they_are_of() -> None:
    found = samples({"1": hops(1000, 3000), "2+int8": hops(500)})
    assert found["clawstream_hop_seconds_sum m 1 run"] == pytest.approx(0.004)
    assert found["clawstream_hop_seconds_count m 1 run"] == 2
    assert found["clawstream_hop_seconds_count m 2+int8 run"] == 1
    assert found["clawstream_batch_size_sum m 1"] == 4
    assert found["clawstream_batch_size_count m 2+int8"] == 1


def test_waiting_for_earlier_results_has_no_version() -> None:
    registry = SessionRegistry(1)
    registry.observe_latency("m", 1.0, 0.5)
    found = samples({}, registry)
    assert found["clawstream_hop_seconds_sum m  order"] == 0.5
    assert not any("run" in name.split() for name in found)
