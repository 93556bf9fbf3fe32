"""Versions that follow one another while items flow, in virtual time and without processes."""

from __future__ import annotations

import asyncio
import gc
import weakref
from collections.abc import Callable
from typing import Any

import pytest

from engine.errors import InternalError, Overloaded, StartupError, Unavailable, UnknownModel
from engine.types import Cancelled, Item, Policy, Result
from engine.versions.track import Track
from tests.fakes.version_bench import VersionBench
from tests.fakes.virtual_time import settle, virtual_time

pytestmark = pytest.mark.unit


@pytest.fixture(autouse=True)
def disk_without_threads(monkeypatch: pytest.MonkeyPatch) -> None:
    async def at_once(work: Callable[..., Any], *arguments: Any) -> Any:
        return work(*arguments)

    monkeypatch.setattr(asyncio, "to_thread", at_once)


async def close(bench: VersionBench) -> None:
    bench.model.check_integrity()
    statistics = bench.model.statistics()
    answered = statistics.results + statistics.failed + statistics.cancelled
    answered += sum(statistics.dropped.values())
    assert statistics.accepted == answered + statistics.in_flight
    await bench.model.aclose(asyncio.get_running_loop().time() + 1.0)
    assert all(not pool.is_started for pools in bench.pools.values() for pool in pools)


@virtual_time
async def test_new_items_go_to_the_new_version_and_none_is_lost() -> None:
    bench = VersionBench("1", trial_s=0.0)
    await bench.model.start(1)
    lane = bench.open_lane()
    feeding = asyncio.create_task(bench.feed(lane, 0, 40))
    await asyncio.sleep(0.5)
    bench.repository.offered = ["2"]
    assert await bench.model.reload() == "2"
    await feeding
    await asyncio.sleep(0.5)
    versions = bench.versions_told()
    assert len(versions) == 40
    assert versions == sorted(versions)
    assert set(versions) == {"1", "2"}
    assert not bench.pools["1"][0].is_started
    assert bench.states() == {"2": "active"}
    assert bench.model.statistics().results == 40
    assert bench.model.statistics().last_reload == "version 2 serves, version 1 before"
    await close(bench)


@virtual_time
async def test_what_the_old_version_holds_is_answered_by_it() -> None:
    bench = VersionBench("1", trial_s=0.0)
    bench.run_s["1"] = 1.0
    await bench.model.start(1)
    lane = bench.open_lane(policy=Policy.FIFO, capacity=8)
    for number in range(3):
        lane.offer(Item(id=number, payload=b"x"))
    await settle()
    bench.repository.offered = ["2"]
    await bench.model.reload()
    lane.offer(Item(id=3, payload=b"x"))
    await asyncio.sleep(0.5)
    assert list(bench.told) == [3]
    assert bench.states() == {"2": "active", "1": "draining"}
    await asyncio.sleep(3.0)
    assert bench.versions_told() == ["1", "1", "1", "2"]
    await close(bench)


@virtual_time
async def test_items_on_either_side_of_a_switch_can_be_withdrawn() -> None:
    bench = VersionBench("1", trial_s=0.0)
    await bench.model.start(1)
    for pool in bench.pools["1"]:
        pool.block()
    lane = bench.open_lane(policy=Policy.FIFO, capacity=8)
    lane.offer(Item(id=0, payload=b"x"))
    lane.offer(Item(id=1, payload=b"x"))
    await settle()
    bench.repository.offered = ["2"]
    await bench.model.reload()
    lane.offer(Item(id=2, payload=b"x"))
    lane.cancel(0)
    lane.cancel(2)
    lane.close()
    lane.close()
    assert all(isinstance(bench.told[number], Cancelled) for number in range(3))
    with pytest.raises(Unavailable):
        lane.offer(Item(id=3, payload=b"x"))
    assert bench.model.statistics().lanes == 0
    await close(bench)


@virtual_time
async def test_a_version_that_does_not_start_changes_nothing_and_says_why() -> None:
    bench = VersionBench("1")
    bench.broken.add("2")
    await bench.model.start(1)
    bench.repository.offered = ["2"]
    with pytest.raises(StartupError, match="version 2 is corrupt"):
        await bench.model.reload()
    lane = bench.open_lane()
    await bench.feed(lane, 0, 3)
    assert bench.versions_told() == ["1", "1", "1"]
    assert bench.states() == {"1": "active", "2": "rejected"}
    statistics = bench.model.statistics()
    assert statistics.versions[-1].reason == "did not start: version 2 is corrupt"
    assert statistics.reloads == {"failed": 1}
    assert statistics.ready
    await close(bench)


@virtual_time
async def test_a_slow_version_is_rolled_back_by_itself_and_the_old_one_goes_on() -> None:
    bench = VersionBench("1", trial_s=30.0)
    bench.run_s = {"1": 0.01, "2": 0.04}
    await bench.model.start(1)
    lane = bench.open_lane()
    await bench.feed(lane, 0, 40)
    bench.repository.offered = ["2"]
    await bench.model.reload()
    assert bench.states() == {"2": "trial", "1": "reserve"}
    await bench.feed(lane, 40, 60)
    assert bench.versions_told()[-1] == "1"
    assert bench.versions_told().count("2") < 40
    statistics = bench.model.statistics()
    assert statistics.version == "1"
    assert statistics.reloads == {"done": 1, "rolled_back": 1}
    assert statistics.last_reload == (
        "rolled back from version 2 to 1: "
        "a batch of 1 takes 40.0 ms (median), at most 10.0 ms before"
    )
    await asyncio.sleep(1.0)
    assert not bench.pools["2"][0].is_started
    assert bench.states() == {"1": "active", "2": "rejected"}
    assert statistics.results == 100
    await close(bench)


@virtual_time
async def test_a_version_that_fails_its_items_is_rolled_back() -> None:
    bench = VersionBench("1", trial_s=30.0)
    bench.respond["2"] = lambda work: InternalError()
    await bench.model.start(1)
    lane = bench.open_lane()
    bench.repository.offered = ["2"]
    await bench.model.reload()
    await bench.feed(lane, 0, 60)
    assert "100 % of its last" in bench.model.statistics().last_reload
    assert isinstance(bench.told[59], Result)
    await close(bench)


@virtual_time
async def test_a_version_whose_workers_all_die_is_rolled_back() -> None:
    bench = VersionBench("1", trial_s=30.0)
    await bench.model.start(1)
    bench.repository.offered = ["2"]
    await bench.model.reload()
    bench.pools["2"][0].break_down("circuit open: exited with code 7")
    await asyncio.sleep(0.5)
    assert bench.states() == {"1": "active", "2": "rejected"}
    assert "it does not serve" in bench.model.statistics().last_reload
    await close(bench)


@virtual_time
async def test_a_good_version_ends_its_trial_and_the_old_one_leaves() -> None:
    bench = VersionBench("1", trial_s=2.0)
    await bench.model.start(1)
    lane = bench.open_lane()
    await bench.feed(lane, 0, 40)
    bench.repository.offered = ["2"]
    await bench.model.reload()
    assert bench.pools["1"][0].is_started
    await bench.feed(lane, 40, 60)
    assert not bench.pools["1"][0].is_started
    assert bench.states() == {"2": "active"}
    await close(bench)


@virtual_time
async def test_another_reload_ends_the_trial_and_never_more_than_three_versions_are_alive() -> None:
    bench = VersionBench("1", trial_s=30.0)
    await bench.model.start(1)
    lane = bench.open_lane()
    feeding = asyncio.create_task(bench.feed(lane, 0, 100))
    for version in range(2, 8):
        bench.repository.offered = [str(version)]
        await bench.model.reload()
        alive = sum(pool.is_started for pools in bench.pools.values() for pool in pools)
        assert alive <= 3
        await asyncio.sleep(0.3)
    await feeding
    await asyncio.sleep(0.5)
    assert len(bench.told) == 100
    assert all(isinstance(outcome, Result) for outcome in bench.told.values())
    await close(bench)


@virtual_time
async def test_versions_that_are_gone_are_forgotten_however_many_there_were() -> None:
    bench = VersionBench("1", trial_s=0.0)
    await bench.model.start(1)
    lanes = [bench.open_lane() for _ in range(3)]  # one of them stays idle
    tracks = [weakref.ref(track) for track in tracks_of(bench)]
    for version in range(2, 32):
        bench.repository.offered = [str(version)]
        await bench.model.reload()
        tracks += [weakref.ref(track) for track in tracks_of(bench)]
        bench.pools.clear()
        await bench.feed(lanes[0], version * 10, 1)
        await bench.feed(lanes[version % 2], version * 10 + 5, 1)
    await asyncio.sleep(1.0)
    gc.collect()
    assert sum(track() is not None for track in tracks) == 1
    assert bench.model.statistics().results == 60
    await close(bench)


def tracks_of(bench: VersionBench) -> list[Track]:
    return [track for edition in bench.model._editions.in_memory() for track in edition.tracks]


@virtual_time
async def test_the_same_version_can_be_loaded_again() -> None:
    bench = VersionBench("1", trial_s=0.0)
    await bench.model.start(1)
    pinned = bench.open_lane(version="1")
    assert await bench.model.reload() == "1"
    await bench.feed(pinned, 0, 2)
    assert [pool.is_started for pool in bench.pools["1"]] == [False, True]
    assert bench.versions_told() == ["1", "1"]
    await close(bench)


@virtual_time
async def test_one_reload_at_a_time_and_closing_ends_it() -> None:
    bench = VersionBench("1")
    await bench.model.start(1)
    bench.start_gate = asyncio.Event()
    reloading = asyncio.create_task(bench.model.reload())
    await settle()
    with pytest.raises(Overloaded, match="under way"):
        await bench.model.reload()
    await bench.model.aclose(asyncio.get_running_loop().time() + 1.0)
    with pytest.raises(Unavailable, match="closed meanwhile"):
        await reloading
    assert not any(pool.is_started for pools in bench.pools.values() for pool in pools)
    with pytest.raises(Unavailable):
        await bench.model.reload()


@virtual_time
async def test_a_pinned_lane_is_served_by_its_version_and_told_when_that_is_gone() -> None:
    bench = VersionBench("1", "2", versions=("all",), trial_s=0.0)
    await bench.model.start(1)
    assert bench.states() == {"1": "served", "2": "active"}
    old, free = bench.open_lane(version="1"), bench.open_lane()
    await bench.feed(old, 0, 2)
    await bench.feed(free, 2, 2)
    assert bench.versions_told() == ["1", "1", "2", "2"]
    with pytest.raises(UnknownModel, match="has version '1', '2', not '3'"):
        bench.open_lane(version="3")
    bench.repository.offered = ["2", "3"]
    await bench.model.reload()
    assert len(bench.pools["2"]) == 1  # it serves on
    await bench.feed(free, 4, 1)
    assert bench.versions_told()[-1] == "3"
    with pytest.raises(Unavailable, match="version '1' of 'm' is not served any more"):
        old.offer(Item(id=9, payload=b"x"))
    await close(bench)


@virtual_time
async def test_under_the_latest_policy_a_pin_ends_with_its_version() -> None:
    bench = VersionBench("1", trial_s=0.0)
    await bench.model.start(1)
    pinned = bench.open_lane(version="1")
    bench.repository.offered = ["2"]
    await bench.model.reload()
    with pytest.raises(Unavailable, match="not served any more"):
        pinned.offer(Item(id=0, payload=b"x"))
    await close(bench)


@virtual_time
async def test_pressure_moves_streams_to_the_next_variant_and_back() -> None:
    bench = VersionBench("1", variants=("", "+int8"), trial_s=0.0)
    await bench.model.start(1)
    lane, pinned = bench.open_lane(), bench.open_lane(version="1+int8")
    await bench.feed(lane, 0, 5)
    bench.level = 1
    await bench.feed(lane, 5, 10)
    bench.level = 3
    await bench.feed(lane, 15, 10)
    bench.level = 0
    await bench.feed(lane, 25, 10)
    await bench.feed(pinned, 35, 1)
    versions = bench.versions_told()
    assert (versions[0], versions[14], versions[24], versions[34]) == (
        *("1", "1+int8", "1+int8", "1"),
    )
    assert versions[35] == "1+int8"
    await close(bench)


@virtual_time
async def test_files_that_change_are_loaded_once_they_stand_still() -> None:
    bench = VersionBench("1", watch_s=1.0, trial_s=0.0)
    await bench.model.start(1)
    await asyncio.sleep(1.5)
    bench.repository.offered = ["2"]
    for _ in range(3):
        bench.repository.revision += 1  # being copied
        await asyncio.sleep(1.0)
        assert "2" not in bench.pools
    await asyncio.sleep(1.5)
    assert bench.states() == {"2": "active"}
    await close(bench)


@virtual_time
async def test_a_broken_new_version_is_tried_once_and_again_when_its_files_change() -> None:
    bench = VersionBench("1", watch_s=1.0, trial_s=0.0)
    bench.broken.add("2")
    await bench.model.start(1)
    await asyncio.sleep(0.5)
    bench.repository.offered = ["2"]
    await asyncio.sleep(10.0)
    assert len(bench.pools["2"]) == 1
    bench.broken.clear()
    bench.repository.revision += 1
    await asyncio.sleep(4.0)
    assert bench.states() == {"2": "active"}
    await close(bench)


@virtual_time
async def test_workers_hear_how_old_the_queue_is() -> None:
    bench = VersionBench("1")
    bench.run_s["1"] = 0.2
    await bench.model.start(1)
    lane = bench.open_lane(policy=Policy.FIFO, capacity=64)
    await bench.feed(lane, 0, 20, pause_s=0.1)
    assert max(bench.pools["1"][0].queue_ages_s) >= 0.1
    await close(bench)


@virtual_time
async def test_a_start_falls_back_on_the_version_before_and_says_why() -> None:
    bench = VersionBench("2")
    bench.repository.there = ["1", "2"]
    bench.broken.add("2")
    await bench.model.start(1)
    await bench.feed(bench.open_lane(), 0, 2)
    assert bench.versions_told() == ["1", "1"]
    assert bench.states() == {"1": "active", "2": "rejected"}
    await close(bench)


@virtual_time
async def test_a_start_without_a_version_before_fails() -> None:
    bench = VersionBench("2")
    bench.broken.add("2")
    with pytest.raises(StartupError, match="version 2 is corrupt"):
        await bench.model.start(1)
    await bench.model.aclose(asyncio.get_running_loop().time())


@virtual_time
async def test_an_unloaded_model_answers_what_it_has_and_comes_back() -> None:
    bench = VersionBench("1")
    await bench.model.start(1)
    lane = bench.open_lane()
    lane.offer(Item(id=0, payload=b"x"))
    await bench.model.unload()
    assert bench.versions_told() == ["1"]
    assert not bench.pools["1"][0].is_started
    statistics = bench.model.statistics()
    assert (statistics.ready, statistics.unloaded, statistics.reason) == (False, True, "unloaded")
    assert statistics.results == 1
    with pytest.raises(Unavailable, match="unloaded"):
        lane.offer(Item(id=1, payload=b"x"))
    await bench.model.reload()
    await bench.feed(lane, 2, 1)
    assert bench.versions_told() == ["1", "1"]
    await close(bench)
