"""A version that lost its trial is not tried again, in this process or the next."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from typing import Any

import pytest

from tests.fakes.version_bench import VersionBench
from tests.fakes.virtual_time import virtual_time

pytestmark = pytest.mark.unit

LOST = "it does not serve: no worker"


@pytest.fixture(autouse=True)
def disk_without_threads(monkeypatch: pytest.MonkeyPatch) -> None:
    async def at_once(work: Callable[..., Any], *arguments: Any) -> Any:
        return work(*arguments)

    monkeypatch.setattr(asyncio, "to_thread", at_once)


async def roll_back(bench: VersionBench) -> None:
    """Version 2 comes after 1, and loses its trial."""
    await bench.model.start(1)
    bench.repository.offered, bench.repository.there = ["2"], ["1", "2"]
    await bench.model.reload()
    bench.pools["2"][-1].break_down("circuit open")
    await asyncio.sleep(0.5)
    assert bench.states() == {"1": "active", "2": "rejected"}


async def close(bench: VersionBench) -> None:
    await bench.model.aclose(asyncio.get_running_loop().time() + 1.0)


def after_a_restart(bench: VersionBench) -> VersionBench:
    next_bench = VersionBench("2")
    next_bench.repository.__dict__.update(bench.repository.__dict__)
    return next_bench


@virtual_time
async def test_a_restart_serves_the_version_before_and_says_why() -> None:
    first = VersionBench("1", trial_s=30.0)
    await roll_back(first)
    await close(first)
    bench = after_a_restart(first)
    await bench.model.start(1)
    assert bench.states() == {"1": "active", "2": "rejected"}
    assert bench.model.statistics().versions[-1].reason == LOST
    assert "2" not in bench.pools
    await close(bench)


@virtual_time
async def test_a_reload_by_policy_passes_it_over_until_its_files_change() -> None:
    bench = VersionBench("1", trial_s=30.0)
    await roll_back(bench)
    assert await bench.model.reload() == "1"
    bench.repository.verdicts.clear()  # which a change of its files does
    assert await bench.model.reload() == "2"
    await close(bench)


@virtual_time
async def test_who_names_the_version_has_it_tried_again() -> None:
    bench = VersionBench("1", trial_s=2.0)
    await roll_back(bench)
    assert await bench.model.reload("2") == "2"
    assert bench.repository.verdicts == {}
    await asyncio.sleep(3.0)
    assert bench.states() == {"2": "active"}
    await close(bench)
    again = after_a_restart(bench)
    await again.model.start(1)
    assert again.states() == {"2": "active"}
    await close(again)


@virtual_time
async def test_the_verdict_is_on_the_files_that_were_tried_and_not_on_newer_ones() -> None:
    bench = VersionBench("1", trial_s=30.0)
    await bench.model.start(1)
    bench.repository.offered = ["2"]
    await bench.model.reload()
    bench.repository.revision += 1
    bench.pools["2"][-1].break_down("circuit open")
    await asyncio.sleep(0.5)
    assert bench.states()["2"] == "rejected"
    assert bench.repository.verdicts == {}
    await close(bench)


@virtual_time
async def test_a_version_that_only_did_not_start_is_tried_by_the_next_process() -> None:
    bench = VersionBench("2")
    bench.repository.there = ["1", "2"]
    bench.broken.add("2")
    await bench.model.start(1)
    assert bench.states() == {"1": "active", "2": "rejected"}
    assert bench.repository.verdicts == {}
    await close(bench)


@virtual_time
async def test_the_fall_back_of_a_start_passes_it_over_too() -> None:
    bench = VersionBench("3")
    bench.repository.there = ["1", "2", "3"]
    bench.repository.verdicts = {"2": LOST}
    bench.broken.add("3")
    await bench.model.start(1)
    assert bench.states() == {"1": "active", "2": "rejected", "3": "rejected"}
    await close(bench)


@virtual_time
async def test_a_slow_version_serves_when_there_is_no_other() -> None:
    bench = VersionBench("2")
    bench.repository.there = ["1", "2"]
    bench.repository.verdicts = {"1": LOST}
    bench.broken.add("2")
    await bench.model.start(1)
    assert bench.states()["1"] == "active"
    await close(bench)


@virtual_time
async def test_a_disk_that_fails_is_logged_and_the_old_version_goes_on(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    bench = VersionBench("1", trial_s=30.0)

    def fail(*_: object) -> None:
        raise RuntimeError("gone")

    monkeypatch.setattr(bench.repository, "reject", fail)
    with caplog.at_level(logging.ERROR):
        await roll_back(bench)
    assert "keeping the verdict on version 2 failed" in caplog.text
    await close(bench)


@virtual_time
async def test_closing_waits_for_a_verdict_that_is_being_written(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    bench = VersionBench("1", trial_s=30.0)

    async def slowly(work: Callable[..., Any], *arguments: Any) -> Any:
        if work == bench.repository.reject:
            await asyncio.sleep(1.0)
        return work(*arguments)

    monkeypatch.setattr(asyncio, "to_thread", slowly)
    await roll_back(bench)
    assert bench.repository.verdicts == {}
    await close(bench)
    assert bench.repository.verdicts == {"2": LOST}
