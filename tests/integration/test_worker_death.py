"""Workers that die, hang or cannot start: what was in flight is told, and the pool recovers."""

from __future__ import annotations

import asyncio
import os
import signal
import time
from pathlib import Path

import psutil
import pytest

from engine.errors import StartupError, Unavailable
from tests.fakes.pools import (
    RecordingEvents,
    child_pids,
    dispatch_all,
    make_pool,
    nothing_left,
    running_pool,
    work,
)

pytestmark = pytest.mark.integration


async def test_a_killed_worker_is_told_replaced_and_its_item_retried_in_place() -> None:
    async with running_pool(workers=2, options={"run_s": 0.05}) as (pool, events):
        dispatch_all(pool, [work(1, sleep_s=30.0, once="/")], alone=False)
        (pid,) = [pid for pid in child_pids() if psutil.Process(pid).cmdline()[7] == "0"]
        used = pool.statistics().slab_used_bytes
        os.kill(pid, signal.SIGKILL)
        await events.wait(lambda: len(events.lost) == 1)
        keys, reason = events.lost[0]
        assert keys == (1,)
        assert reason == f"worker 0 (pid {pid}) was killed by SIGKILL"
        assert pool.statistics().slab_used_bytes == used  # kept for the retry
        assert pool.idle_workers == 1

        dispatch_all(pool, [work(1)], alone=True)
        assert pool.statistics().slab_used_bytes == used  # nothing was copied again
        pool.release(999)
        await events.wait(lambda: pool.idle_workers >= 1, 5.0)
        await events.wait(lambda: pool.statistics().workers_alive == 2, 5.0)
        assert pool.statistics().restarts == 1


@pytest.mark.parametrize("act", ["abort", "exit"])
async def test_a_worker_that_ends_itself_loses_its_items_once(act: str, tmp_path: Path) -> None:
    async with running_pool() as (pool, events):
        dispatch_all(pool, [work(1, act=act, once=str(tmp_path / "died")), work(2)])
        await events.wait(lambda: len(events.lost) == 1)
        assert events.lost[0][0] == (1, 2)
        assert ("SIGABRT" if act == "abort" else "exited with code 7") in events.lost[0][1]
        for key in (1, 2):
            await events.wait(lambda: pool.idle_workers == 1)
            dispatch_all(pool, [work(key)], alone=True)
            assert (await events.data(key))["batch"] == 1


async def test_a_lost_item_that_is_given_up_frees_its_extent() -> None:
    async with running_pool() as (pool, events):
        dispatch_all(pool, [work(1, act="exit")])
        await events.wait(lambda: len(events.lost) == 1)
        pool.check_integrity()
        assert pool.statistics().slab_used_bytes > 0
        pool.release(1)
        assert pool.statistics().slab_used_bytes == 0


async def test_a_worker_that_is_silent_for_too_long_is_replaced() -> None:
    async with running_pool(stall_timeout_s=0.4) as (pool, events):
        dispatch_all(pool, [work(1, act="hang")])
        await events.wait(lambda: len(events.lost) == 1, 5.0)
        assert "it hung, no sign of life for 0.4 s" in events.lost[0][1]
        await events.wait(lambda: pool.free_slots > 0)
        dispatch_all(pool, [work(2)])
        await events.data(2)


async def test_an_idle_worker_is_not_silent_for_too_long() -> None:
    async with running_pool(stall_timeout_s=0.1) as (pool, events):
        await asyncio.sleep(0.3)
        dispatch_all(pool, [work(1)])
        await events.data(1)
        assert pool.statistics().restarts == 0


async def test_kills_under_load_are_survived_within_five_seconds_each() -> None:
    async with running_pool(workers=2, max_restarts=1) as (pool, events):

        def is_restored(num_kills: int) -> bool:
            statistics = pool.statistics()
            return statistics.restarts == num_kills and statistics.workers_alive == 2

        for kill in range(8):
            keys = range(8 * kill, 8 * kill + 8)
            for key in keys[::2]:
                dispatch_all(pool, [work(key), work(key + 1, sleep_s=0.02)])
            await events.wait(lambda keys=keys: {*keys[:4]} <= events.answers.keys())  # type: ignore[misc]
            os.kill(child_pids()[kill % 2], signal.SIGKILL)
            await events.wait(lambda kill=kill: is_restored(kill + 1), 5.0)  # type: ignore[misc]
        await events.wait(lambda: len(events.answers) + len(lost(events)) == 64)
        assert sorted([*lost(events), *events.answers]) == list(range(64))  # each exactly once
        for each in lost(events):
            pool.release(each)
        assert pool.statistics().slab_used_bytes == 0


def lost(events: RecordingEvents) -> list[int]:
    return [key for keys, _ in events.lost for key in keys]


async def test_a_crash_loop_opens_the_circuit_and_a_probe_closes_it() -> None:
    async with running_pool(max_restarts=1, restart_window_s=2.0) as (pool, events):
        for key in range(2):
            await events.wait(lambda: pool.free_slots > 0)
            dispatch_all(pool, [work(key, act="exit")])
            await events.wait(lambda key=key: len(events.lost) == key + 1)  # type: ignore[misc]
        (reason,) = events.unavailable
        assert "circuit open" in reason
        assert "exited with code 7" in reason
        assert events.retry_at is not None
        assert 1.0 < events.retry_at - asyncio.get_running_loop().time() <= 2.0
        assert not pool.statistics().ready
        assert pool.free_slots == 0
        await events.wait(lambda: pool.free_slots > 0)
        assert pool.statistics().ready
        dispatch_all(pool, [work(9)])
        await events.data(9)
        for key in range(2):
            pool.release(key)


@pytest.mark.parametrize(
    ("start", "words"),
    [
        ("startup_error", "install frobnicator"),
        ("raise", "RuntimeError: scripted failure at start"),
        ("abort", "was killed by SIGABRT while loading"),
        ("hang", "was not ready within start_timeout_s = 0.5 s"),
    ],
)
async def test_a_first_start_that_fails_says_why_and_leaves_nothing(start: str, words: str) -> None:
    # Only the worker that hangs may run into the limit, however busy the machine is.
    start_timeout_s = 0.5 if start == "hang" else 30.0
    with nothing_left():
        options = {"start": start, "start_worker": 1}
        pool, events = make_pool(options=options, workers=2, start_timeout_s=start_timeout_s)
        with pytest.raises(StartupError, match=words):
            await pool.start()
        assert events.lost == []
        assert events.unavailable == []


async def test_two_workers_that_fail_at_the_same_time_are_both_gone() -> None:
    with nothing_left():
        pool, _ = make_pool(options={"start": "hang"}, workers=2, start_timeout_s=0.2)
        with pytest.raises(StartupError, match="was not ready"):
            await pool.start()


@pytest.mark.parametrize("pipeline", ["no.such.module:build", "tests.fakes.pipelines:nothing", "x"])
async def test_a_pipeline_that_cannot_be_imported_is_named(pipeline: str) -> None:
    with nothing_left():
        pool, _ = make_pool()
        pool._manifest = type(pool._manifest)(name="m", pipeline=pipeline)
        with pytest.raises(StartupError, match=pipeline):
            await pool.start()


@pytest.mark.parametrize("delay_s", [0.0, 0.01, 0.1, 0.3])
async def test_closing_while_a_worker_starts_leaves_nothing(delay_s: float) -> None:
    with nothing_left():
        pool, _ = make_pool(options={"start": "hang"})
        start = asyncio.create_task(pool.start())
        await asyncio.sleep(delay_s)
        began = time.monotonic()
        await pool.aclose(asyncio.get_running_loop().time() + 10.0)
        assert time.monotonic() - began < 2.0
        with pytest.raises((StartupError, Unavailable)):
            await start


async def test_a_pool_that_was_closed_does_not_start() -> None:
    with nothing_left():
        pool, _ = make_pool()
        await pool.aclose(asyncio.get_running_loop().time())
        with pytest.raises(Unavailable):
            await pool.start()


async def test_cancelling_the_start_leaves_nothing() -> None:
    with nothing_left():
        pool, _ = make_pool(options={"start": "hang"})
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(pool.start(), 0.3)


async def test_closing_during_backoff_does_not_wait_for_it(tmp_path: Path) -> None:
    async with running_pool(max_restarts=1, restart_window_s=60.0) as (pool, events):
        for key in range(2):
            await events.wait(lambda: pool.free_slots > 0)
            dispatch_all(pool, [work(key, act="exit")])
            await events.wait(lambda key=key: len(events.lost) == key + 1)  # type: ignore[misc]
        began = time.monotonic()
        await pool.aclose(asyncio.get_running_loop().time() + 10.0)
        assert time.monotonic() - began < 1.0


async def test_closing_a_hung_worker_keeps_the_deadline_and_tells_what_is_lost() -> None:
    async with running_pool() as (pool, events):
        dispatch_all(pool, [work(1, act="hang")])
        began = time.monotonic()
        await pool.aclose(asyncio.get_running_loop().time() + 0.2)
        assert time.monotonic() - began < 1.5
        assert [keys for keys, _ in events.lost] == [(1,)]
        await pool.aclose(asyncio.get_running_loop().time())


async def test_closing_a_stopped_worker_ends_it() -> None:
    async with running_pool() as (pool, _):
        (pid,) = child_pids()
        os.kill(pid, signal.SIGSTOP)
        await pool.aclose(asyncio.get_running_loop().time() + 0.1)
