"""All connections flush in one callback of the loop."""

from __future__ import annotations

import asyncio

import pytest

from gateway.net.write_turn import WriteTurn
from tests.fakes.virtual_time import virtual_time

pytestmark = pytest.mark.unit


class Writer:
    """Joins again ``num_again`` times while it flushes."""

    def __init__(self, turn: WriteTurn, num_again: int = 0) -> None:
        self.num_flushes = 0
        self._turn = turn
        self._num_again = num_again

    def flush(self) -> None:
        self.num_flushes += 1
        if self.num_flushes <= self._num_again:
            self._turn.join(self)


@virtual_time
async def test_writers_flush_in_the_next_turn_of_the_loop() -> None:
    turn = WriteTurn()
    writers = [Writer(turn) for _ in range(3)]
    for writer in writers:
        turn.join(writer)
    assert [writer.num_flushes for writer in writers] == [0, 0, 0]
    await asyncio.sleep(0)
    assert [writer.num_flushes for writer in writers] == [1, 1, 1]


@virtual_time
async def test_who_has_more_to_send_lets_the_loop_turn_first() -> None:
    turn = WriteTurn()
    writer = Writer(turn, num_again=1)
    turn.join(writer)
    await asyncio.sleep(0)
    assert writer.num_flushes == 1
    await asyncio.sleep(0)
    assert writer.num_flushes == 2
