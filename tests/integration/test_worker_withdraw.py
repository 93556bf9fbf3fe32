"""What nobody waits for any more is not run, wherever in the worker it is."""

from __future__ import annotations

import asyncio

import pytest

from engine.types import Failed, Result
from tests.fakes.pools import dispatch_all, running_pool, work

pytestmark = pytest.mark.integration


async def test_a_prepared_and_a_queued_item_that_are_withdrawn_do_not_run() -> None:
    async with running_pool(prefetch_count=2, max_batch_size=2) as (pool, events):
        dispatch_all(pool, [work(1, sleep_s=0.5)])
        dispatch_all(pool, [work(2, act="abort"), work(3)])  # prepared behind it
        dispatch_all(pool, [work(4, stage="prepare", sleep_s=0.2), work(5, act="abort")])
        await asyncio.sleep(0.1)
        for key in (2, 5):
            pool.withdraw(key)
        pool.withdraw(99)
        for key in (1, 3, 4):
            assert isinstance(await events.answer(key), Result)
        for key in (2, 5):
            assert isinstance(await events.answer(key), Failed)
        assert events.lost == []
        data = await events.data(3)
        assert data["batch"] == 1


async def test_the_running_item_ends_and_what_is_left_of_it_is_not_done() -> None:
    async with running_pool() as (pool, events):
        dispatch_all(pool, [work(1, sleep_s=0.3), work(2, stage="interpret", act="abort")])
        await asyncio.sleep(0.1)
        pool.withdraw(2)
        pool.withdraw(2)
        assert isinstance(await events.answer(1), Result)
        assert isinstance(await events.answer(2), Failed)
        assert events.lost == []
        dispatch_all(pool, [work(3)])
        assert isinstance(await events.answer(3), Result)


async def test_withdrawing_what_was_answered_changes_nothing() -> None:
    async with running_pool() as (pool, events):
        dispatch_all(pool, [work(1)])
        assert isinstance(await events.answer(1), Result)
        pool.withdraw(1)
        dispatch_all(pool, [work(2)])
        assert isinstance(await events.answer(2), Result)
