from __future__ import annotations

import asyncio
import threading

import pytest

from engine.permits import Permits

pytestmark = pytest.mark.unit


async def settle() -> None:
    for _ in range(5):
        await asyncio.sleep(0)


def test_no_more_permits_than_there_are() -> None:
    permits = Permits(2)
    assert [permits.try_take() for _ in range(3)] == [True, True, False]
    permits.release()
    assert permits.try_take()


async def test_waiting_coroutines_are_served_in_order() -> None:
    permits = Permits(1)
    assert permits.try_take()
    served: list[int] = []

    async def take(number: int) -> None:
        await permits.wait_take_async()
        served.append(number)

    tasks = [asyncio.create_task(take(number)) for number in range(3)]
    await settle()
    assert served == []
    for _ in range(3):
        permits.release()
    await asyncio.gather(*tasks)
    assert served == [0, 1, 2]
    assert not permits.try_take()


async def test_a_cancelled_wait_takes_nothing() -> None:
    permits = Permits(1)
    assert permits.try_take()
    waiting = asyncio.create_task(permits.wait_take_async())
    await settle()
    waiting.cancel()
    await settle()
    permits.release()
    assert permits.try_take()


async def test_a_wait_cancelled_in_the_moment_of_the_grant_takes_nothing() -> None:
    permits = Permits(1)
    assert permits.try_take()
    waiting = asyncio.create_task(permits.wait_take_async())
    await settle()
    permits.release()
    waiting.cancel()
    with pytest.raises(asyncio.CancelledError):
        await waiting
    assert permits.try_take()


def test_a_thread_waits_until_a_permit_is_released() -> None:
    permits = Permits(1)
    permits.wait_take()
    thread = threading.Thread(target=permits.wait_take)
    thread.start()
    permits.release()
    thread.join(10.0)
    assert not thread.is_alive()
    assert not permits.try_take()
