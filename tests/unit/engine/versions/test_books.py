"""Counts over versions that come and go."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import pytest

from tests.fakes.version_bench import VersionBench
from tests.fakes.virtual_time import virtual_time

pytestmark = pytest.mark.unit


@pytest.fixture(autouse=True)
def disk_without_threads(monkeypatch: pytest.MonkeyPatch) -> None:
    async def at_once(work: Callable[..., Any], *arguments: Any) -> Any:
        return work(*arguments)

    monkeypatch.setattr(asyncio, "to_thread", at_once)


@virtual_time
async def test_hops_are_told_by_version_as_long_as_that_is_in_memory() -> None:
    bench = VersionBench("1", trial_s=0.0)
    await bench.model.start(1)
    lane = bench.open_lane()
    await bench.feed(lane, 0, 3)
    bench.repository.offered = ["2"]
    await bench.model.reload()
    await bench.feed(lane, 3, 2)
    await asyncio.sleep(0.5)
    assert results_by_version(bench) == {"2": 2}
    await bench.model.reload()  # the same version again: its counts may not fall
    await bench.feed(lane, 5, 1)
    await asyncio.sleep(0.5)
    assert results_by_version(bench) == {"2": 3}
    bench.repository.offered = ["3"]
    await bench.model.reload()
    await asyncio.sleep(0.5)
    assert results_by_version(bench) == {"3": 0}
    await bench.model.aclose(asyncio.get_running_loop().time() + 1.0)


def results_by_version(bench: VersionBench) -> dict[str, int]:
    hops = bench.model.statistics().hops
    return {version: sum(each["run"].counts) for version, each in hops.items()}
