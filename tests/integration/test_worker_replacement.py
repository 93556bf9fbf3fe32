"""Workers that are replaced, hired and retired while they serve: no item is lost."""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import psutil
import pytest

from engine.workers import staff
from engine.workers.pool import WorkerPool
from tests.fakes.pools import RecordingEvents, child_pids, dispatch_all, running_pool, work

pytestmark = pytest.mark.integration


@asynccontextmanager
async def tended(pool: WorkerPool, queue_age_s: list[float]) -> AsyncIterator[None]:
    """Look after the pool ten times a second, as its model does."""

    async def tend() -> None:
        while True:
            pool.tend(queue_age_s[0])
            await asyncio.sleep(0.1)

    task = asyncio.create_task(tend())
    try:
        yield
    finally:
        task.cancel()


async def keep_busy(pool: WorkerPool, events: RecordingEvents, first: int, count: int) -> set[int]:
    """Answers to ``count`` items, given as fast as they are taken; returns who answered."""
    for key in range(first, first + count):
        await events.wait(lambda: pool.free_slots > 0)
        dispatch_all(pool, [work(key)])
    pids = [(await events.data(key))["pid"] for key in range(first, first + count)]
    return set(pids)


async def test_a_bloated_worker_is_replaced_under_load_and_loses_nothing() -> None:
    ceiling_mb = 200
    async with (
        running_pool(options={"run_s": 0.005}, max_worker_memory_mb=ceiling_mb) as (pool, events),
        tended(pool, [0.0]),
    ):
        (before,) = await keep_busy(pool, events, 0, 5)
        dispatch_all(pool, [work(100, act="bloat", bloat_mb=ceiling_mb)])
        key = 1000
        while not pool.statistics().replaced:
            await keep_busy(pool, events, key, 20)
            key += 20
        (after,) = await keep_busy(pool, events, key, 5)
        assert after != before
        assert events.lost == []
        assert pool.statistics().replaced == {"memory": 1}
        assert pool.statistics().restarts == 0
        await events.wait(lambda: pool.statistics().workers_alive == 1)


async def test_memory_near_the_ceiling_is_told_before_anything_happens() -> None:
    async with (
        running_pool(max_worker_memory_mb=300) as (pool, events),
        tended(pool, [0.0]),
    ):
        dispatch_all(pool, [work(1, act="bloat", bloat_mb=200)])
        await events.answer(1)
        key = 2
        while pool.statistics().memory_share < 0.6:
            await keep_busy(pool, events, key, 1)
            key += 1
        assert pool.statistics().memory_share < 1.0
        assert pool.statistics().replaced == {}


async def test_old_workers_are_replaced_one_after_another() -> None:
    async with (
        running_pool(workers=2, max_worker_age_s=0.8) as (pool, events),
        tended(pool, [0.0]),
    ):
        key = 0
        while pool.statistics().replaced.get("age", 0) < 2:
            assert pool.statistics().workers_alive == 2
            await keep_busy(pool, events, key, 4)
            key += 4
            await asyncio.sleep(0.02)
        assert events.lost == []


async def test_an_old_queue_hires_and_the_worker_that_leaves_answers_what_it_holds() -> None:
    queue_age_s = [1.0]
    config = {"min_workers": 1, "max_workers": 2, "scale_queue_age_millis": 20}
    async with running_pool(options={"run_s": 0.05}, **config) as (pool, events):
        async with tended(pool, queue_age_s):
            await events.wait(lambda: pool.statistics().workers_alive == 2)
            queue_age_s[0] = 0.0
        for key in range(4):
            dispatch_all(pool, [work(key)])
        assert pool.free_slots == 0
        await asyncio.sleep(0)  # the hiring is over one turn after its worker serves
        pool._staff.retire()
        await events.wait(lambda: len(events.answers) == 4)
        assert len({(await events.data(key))["worker"] for key in range(4)}) == 2
        assert events.lost == []
        assert pool.statistics().workers_wanted == 1


async def test_a_new_worker_that_does_not_start_leaves_the_old_one_serving(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    options = {"start": "raise", "start_worker": 1}
    async with (
        running_pool(options=options, max_worker_age_s=0.1) as (pool, events),
        tended(pool, [0.0]),
    ):
        monkeypatch.setattr(staff, "RETRY_S", 0.1)
        async with asyncio.timeout(10):
            while pool._staff._next_change_at == 0.0:
                await keep_busy(pool, events, len(events.answers), 1)
        await keep_busy(pool, events, len(events.answers), 5)
        assert pool.statistics().replaced == {}
        assert events.lost == []


async def test_closing_while_a_worker_is_replaced_leaves_nothing() -> None:
    options = {"start": "hang", "start_worker": 1}
    async with running_pool(options=options, max_worker_age_s=0.1) as (pool, _):
        await asyncio.sleep(0.2)
        pool.tend(0.0)
        assert not pool._staff.can_change(asyncio.get_running_loop().time())
        await asyncio.sleep(0.1)


async def test_one_poisoned_frame_in_eight_gives_seven_results_and_one_error() -> None:
    async with running_pool() as (pool, events):
        dispatch_all(
            pool, [work(key, **({"act": "raise"} if key == 3 else {})) for key in range(8)]
        )
        await events.wait(lambda: len(events.answers) == 8)
        failed = [key for key, answer in events.answers.items() if hasattr(answer, "error")]
        assert failed == [3]


async def test_a_worker_runs_below_its_gateways_priority() -> None:
    async with running_pool():
        (pid,) = child_pids()
        assert psutil.Process(pid).nice() == min(19, os.getpriority(os.PRIO_PROCESS, 0) + 5)
