"""Readers that are too slow, at full size: a gateway in its own process, default deadlines."""

from __future__ import annotations

import asyncio
import os

import pytest

from loadtest.delivery.slow_reader import (
    DEADLINE_S,
    GRACE_S,
    RESULT_BYTES,
    watch_ends,
    watch_slow_reader,
)
from loadtest.delivery.target import Target

pytestmark = pytest.mark.slow


def test_results_for_a_slow_reader_are_fresh_and_cost_no_memory() -> None:
    with Target("gateway", result_bytes=RESULT_BYTES) as target:
        figures = asyncio.run(watch_slow_reader(target, seconds=10))
    assert figures.results_per_s > 15
    # The figure to reach is that of the bench, on a machine of its own; a queue shows as seconds.
    assert figures.age_p99_s < 0.4
    assert figures.rss_growth_mb < 8


def test_bad_readers_are_gone_in_time_and_a_busy_one_stays() -> None:
    core = min(os.sched_getaffinity(0))
    ends = asyncio.run(watch_ends(core))
    assert ends.pop("blocked").after_s is None
    for name, ended in ends.items():
        assert ended.after_s is not None, name
        assert ended.after_s <= DEADLINE_S + GRACE_S, name
        assert ended.code == 4008, name
