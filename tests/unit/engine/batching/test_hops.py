from __future__ import annotations

import pytest

from engine.batching.counters import Counters
from engine.types import Result, Timing
from engine.versions.books import add_counters

pytestmark = pytest.mark.unit


def test_every_result_counts_once_in_every_hop_and_versions_add_up() -> None:
    total = Counters()
    for _ in range(2):
        counters = Counters()
        timing = Timing(queue=1_000, batch=200, prepare=3_000, run=40_000, interpret=90)
        counters.count(Result(data=b"{}", model="m", version="1", timing=timing))
        counters.hops.observe_batch(8)
        add_counters(total, counters)
        total.hops.add(counters.hops)
    assert total.results == 2
    for hop, times_s in total.hops.times_s.items():
        assert sum(times_s.counts) == 2, hop
    assert total.hops.times_s["run"].sum == pytest.approx(0.08)
    assert total.hops.batch_sizes.counts[3] == 2  # those of at most 8
