"""What the composite adds to its engines; it also passes ``tests/contract``."""

from __future__ import annotations

import asyncio

import pytest

from engine.composite import CompositeEngine
from engine.errors import StartupError, Unavailable, UnknownModel
from engine.types import Item, LaneSpec, Outcome, Progress, Result
from tests.fakes.engine import FakeEngine
from tests.fakes.virtual_time import settle, virtual_time

pytestmark = pytest.mark.unit


class Watched(FakeEngine):
    """Records its life; ``gate`` and ``start_error`` delay and fail its start."""

    def __init__(self, *models: str) -> None:
        super().__init__(models, delay_s=1.0)
        self.gate: asyncio.Event | None = None
        self.start_error: StartupError | None = None
        self.is_running = False

    async def start(self) -> None:
        self.is_running = True
        if self.gate is not None:
            await self.gate.wait()
        if self.start_error is not None:
            raise self.start_error

    async def aclose(self, deadline: float) -> None:
        await super().aclose(deadline)
        self.is_running = False


def ignore(item_id: int, news: Progress | Outcome) -> None:
    """A stream that does not care."""


@virtual_time
async def test_a_lane_goes_to_the_engine_with_its_model() -> None:
    pictures, prompts = Watched("faces", "labels"), Watched("chat")
    engine = CompositeEngine([pictures, prompts])
    await engine.start()
    told: list[Progress | Outcome] = []
    lane = engine.open_lane(LaneSpec(model="chat"), lambda _, outcome: told.append(outcome))
    lane.offer(Item(id=1, payload=b"x"))
    assert [len(pictures.offered), len(prompts.offered)] == [0, 1]
    await engine.aclose(10.0)
    assert isinstance(told[0], Result)
    with pytest.raises(UnknownModel):
        CompositeEngine([pictures]).open_lane(LaneSpec(model="chat"), ignore)


@virtual_time
async def test_statistics_are_those_of_all_models() -> None:
    pictures, prompts = Watched("faces", "labels"), Watched("chat")
    engine = CompositeEngine([pictures, prompts])
    await engine.start()
    assert [model.model for model in engine.statistics().models] == ["faces", "labels", "chat"]
    assert engine.statistics().ready
    prompts.set_unavailable("circuit open")
    assert not engine.statistics().ready
    await engine.aclose(1.0)


def test_two_engines_must_not_serve_the_same_name() -> None:
    with pytest.raises(ValueError, match="two engines serve a model named 'chat'"):
        CompositeEngine([Watched("faces", "chat"), Watched("chat")])


@virtual_time
async def test_an_engine_that_cannot_start_stops_the_others() -> None:
    slow, broken = Watched("slow"), Watched("broken")
    slow.gate = asyncio.Event()
    broken.start_error = StartupError("model broken: no such file")
    engine = CompositeEngine([slow, broken])
    with pytest.raises(StartupError, match="no such file"):
        await engine.start()
    assert not slow.is_running
    with pytest.raises(Unavailable):
        engine.open_lane(LaneSpec(model="slow"), ignore)


@virtual_time
async def test_a_cancelled_start_leaves_nothing_running() -> None:
    quick, slow = Watched("quick"), Watched("slow")
    slow.gate = asyncio.Event()
    engine = CompositeEngine([quick, slow])
    starting = asyncio.create_task(engine.start())
    await settle()
    starting.cancel()
    with pytest.raises(asyncio.CancelledError):
        await starting
    assert not quick.is_running
    assert not slow.is_running


@virtual_time
async def test_all_engines_close_within_one_deadline() -> None:
    engines = [Watched("a"), Watched("b"), Watched("c")]
    engine = CompositeEngine(engines)
    await engine.start()
    for each in engines:
        each.block()
        each.open_lane(LaneSpec(model=each.statistics().models[0].model), ignore).offer(
            Item(id=1, payload=b"")
        )
    loop = asyncio.get_running_loop()
    await engine.aclose(loop.time() + 2.0)
    assert loop.time() == pytest.approx(2.0)
    assert [model.dropped for model in engine.statistics().models] == [{"shutdown": 1}] * 3
