"""Whether a reader is taken to have room, from the windows that its kernel tells."""

from __future__ import annotations

import asyncio

import pytest

from gateway.net.reader_window import POLL_S, WAIT_S, ReaderWindow
from tests.fakes.virtual_time import virtual_time

pytestmark = pytest.mark.unit


class Rig:
    def __init__(self) -> None:
        self.told: int | None = 48_000
        self.num_wakes = 0
        loop = asyncio.get_running_loop()
        self.window = ReaderWindow(lambda: self.told, self._count, loop)
        self._now = loop.time

    def _count(self) -> None:
        self.num_wakes += 1

    def is_open(self, told: int | None) -> bool:
        self.told = told
        return self.window.is_open(self._now())


@virtual_time
async def test_more_than_half_of_the_widest_window_is_room() -> None:
    rig = Rig()
    told = (48_000, 24_001, 24_000, 0)
    assert [rig.is_open(window) for window in told] == [True, True, False, False]
    rig.window.stop()


@virtual_time
async def test_a_system_that_tells_nothing_holds_nobody_back() -> None:
    rig = Rig()
    assert rig.is_open(48_000)
    assert rig.is_open(None)


@virtual_time
async def test_however_often_it_is_asked_one_poll_is_under_way_and_none_after_the_stop() -> None:
    rig = Rig()
    rig.is_open(48_000)
    assert not any(rig.is_open(0) for _ in range(5))
    await asyncio.sleep(2 * POLL_S)
    assert rig.num_wakes == 1
    rig.is_open(0)
    rig.window.stop()
    await asyncio.sleep(2 * POLL_S)
    assert rig.num_wakes == 1


@virtual_time
async def test_the_wait_is_bounded_and_a_smaller_buffer_is_learnt() -> None:
    rig = Rig()
    rig.is_open(48_000)
    assert not rig.is_open(20_000)
    await asyncio.sleep(WAIT_S)
    assert rig.is_open(20_000)
    assert rig.is_open(20_000)
    rig.window.stop()
