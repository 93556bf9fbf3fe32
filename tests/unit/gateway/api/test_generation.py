"""A prompt in the engine and its reader, in virtual time."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from engine.errors import UnknownModel
from engine.types import Dropped, DropReason, Failed, Item, LaneSpec, Policy
from gateway.api.generation import Generation, Reading
from gateway.config_sections import PacingConfig
from gateway.session.clock import Clock
from gateway.session.pacing import DELAY_JUMP, OFF_AHEAD, Pacing
from gateway.session.registry import SessionRegistry
from gateway.session.release_table import REFRESH_S
from gateway.stream.network_state import NetworkState
from gateway.stream.release_unpaced import UNPACED_TOKENS_PER_S
from tests.fakes.scripted_engine import ScriptedEngine, ScriptedLane
from tests.fakes.text_engine import finished
from tests.fakes.virtual_time import run_until, virtual_time

pytestmark = pytest.mark.unit


def a_generation(
    engine: ScriptedEngine,
    *,
    model: str = "fake",
    max_unread_chars: int = 1000,
    pace: str = "off",
    is_whole: bool = False,
    pacing: PacingConfig | None = None,
) -> tuple[Generation, SessionRegistry]:
    registry = SessionRegistry(1)
    deadline = asyncio.get_running_loop().time() + 10.0
    generation = Generation(
        engine,
        registry,
        Pacing(pacing or PacingConfig(), Clock(asyncio.get_running_loop())),
        LaneSpec(model=model, policy=Policy.FIFO),
        Item(id=1, payload=b"{}", deadline=deadline),
        Reading(tenant="", pace=pace, is_whole=is_whole, max_unread_chars=max_unread_chars),
    )
    return generation, registry


@virtual_time
async def test_texts_and_the_end_are_taken_together_when_they_came_together() -> None:
    engine = ScriptedEngine()
    generation, registry = a_generation(engine)
    with generation:
        (lane,) = engine.lanes
        assert not await generation.wait(1.0)
        lane.progress(1, "a")
        lane.progress(1, "")
        assert await generation.wait(1.0)
        assert generation.take() == (["a"], None)
        assert not await generation.wait(1.0)
        lane.progress(1, "b")
        end = finished()
        lane.answer(1, end)
        assert generation.take() == (["b"], end)
        generation.end("stop")
    assert lane.is_closed
    totals = registry.text_of("fake")
    assert (totals.tokens, totals.endings) == (3, {"stop": 1})


@virtual_time
async def test_leaving_withdraws_the_prompt() -> None:
    engine = ScriptedEngine()
    generation, registry = a_generation(engine)
    with generation:
        pass
    assert engine.lanes[0].items == {}
    assert registry.text_of("fake").endings == {"disconnected": 1}
    assert generation.take() == ([], None)


@virtual_time
async def test_a_model_that_is_not_there_leaves_nothing_behind() -> None:
    generation, registry = a_generation(ScriptedEngine(), model="none")
    with pytest.raises(UnknownModel), generation:
        raise AssertionError("never entered")
    assert registry.statistics().texts == {}


@virtual_time
async def test_a_reader_that_lags_too_far_behind_gets_an_error() -> None:
    engine = ScriptedEngine()
    generation, _ = a_generation(engine, max_unread_chars=10)
    with generation:
        for _ in range(5):
            engine.lanes[0].progress(1, "xxxx")
        texts, outcome = generation.take()
        assert texts == ["xxxx"] * 3
        assert isinstance(outcome, Failed)
        engine.lanes[0].progress(1, "more")
        assert generation.take().texts == []


@virtual_time
async def test_an_engine_that_forgets_the_deadline_does_not_hold_the_reader() -> None:
    generation, _ = a_generation(ScriptedEngine())
    with generation:
        while not await generation.wait(4.0):
            pass
        assert asyncio.get_running_loop().time() == pytest.approx(11.0)
        assert generation.take().outcome == Dropped(DropReason.DEADLINE)
        await run_until(12.0)


class ReleasingLane(ScriptedLane):
    """Notes how far its reader is."""

    def __init__(self, *args: Any) -> None:
        super().__init__(*args)
        self.released: list[tuple[int, int, float]] = []

    def note_release(self, item_id: int, released: int, tokens_per_s: float) -> None:
        self.released.append((item_id, released, tokens_per_s))


class ReleasingEngine(ScriptedEngine):
    """Its lanes want to know how far their readers are."""

    def open_lane(self, spec: LaneSpec, emit: Any) -> ReleasingLane:
        lane = ReleasingLane(self, spec, emit)
        self.lanes.append(lane)
        return lane


@virtual_time
async def test_the_engine_learns_what_has_left_and_that_nobody_reads() -> None:
    engine = ReleasingEngine()
    generation, _ = a_generation(engine)
    with generation:
        lane = engine.lanes[0]
        assert isinstance(lane, ReleasingLane)
        for text in ("a", "", "b"):
            lane.progress(1, text)
        await run_until(REFRESH_S + 0.01)
        assert lane.released[-1] == (1, 3, UNPACED_TOKENS_PER_S)
        for _ in range(20):
            lane.progress(1, "c")
        await run_until(REFRESH_S + 0.06)
        item_id, released, rate = lane.released[-1]
        assert (item_id, released, rate) == (1, 3 + OFF_AHEAD - 2, 0.0)
        assert generation.take().texts == ["a", "b", *"cccccc"]
        assert "".join(generation.take().texts) == "c" * 14
        await run_until(0.18)
        assert lane.released[-1] == (1, 23, UNPACED_TOKENS_PER_S)


@virtual_time
async def test_a_pace_spreads_what_came_at_once_and_the_end_comes_last() -> None:
    engine = ScriptedEngine()
    generation, registry = a_generation(engine, pace="steady")
    with generation:
        for text in "abc":
            engine.lanes[0].progress(1, text)
        end = finished()
        engine.lanes[0].answer(1, end)
        assert generation.take() == (["a"], None)
        started_at = asyncio.get_running_loop().time()
        assert await generation.wait(1.0)
        assert generation.take() == (["b"], None)
        assert asyncio.get_running_loop().time() - started_at == pytest.approx(0.0417, abs=1e-3)
        await run_until(0.2)
        assert generation.take() == (["c"], end)
    assert registry.text_of("fake").delivery.num_held == 0


@virtual_time
async def test_a_whole_answer_waits_for_no_reader() -> None:
    engine = ScriptedEngine()
    generation, _ = a_generation(engine, is_whole=True)
    with generation:
        for _ in range(50):
            engine.lanes[0].progress(1, "x")
        engine.lanes[0].answer(1, finished())
        texts, outcome = generation.take()
        assert len(texts) == 50
        assert outcome is not None


@virtual_time
async def test_a_network_that_slows_down_slows_the_pace_of_what_is_paced() -> None:
    generation, registry = a_generation(ScriptedEngine(), pace="steady")
    with generation:
        generation.note_network(NetworkState(rtt_ms=20.0))
        assert registry.text_of("fake").triggers[DELAY_JUMP] == 0
        generation.note_network(NetworkState(rtt_ms=200.0))
        generation.note_network(NetworkState(rtt_ms=200.0))
    assert registry.text_of("fake").triggers[DELAY_JUMP] == 1


@virtual_time
async def test_a_network_that_loses_gets_less_of_a_stream_with_a_bucket() -> None:
    pacing = PacingConfig(limit_streams=True, capacity=2.0, fill_rate=40.0)
    counts = []
    for loss in (0.0, 0.5):
        engine = ScriptedEngine()
        generation, _ = a_generation(engine, pace="steady", pacing=pacing)
        with generation:
            generation.note_network(NetworkState(rtt_ms=20.0, loss=loss))
            for _ in range(100):
                engine.lanes[0].progress(1, "x")
            count, until = 0, asyncio.get_running_loop().time() + 2.0
            while asyncio.get_running_loop().time() < until:
                await generation.wait(0.1)
                count += len(generation.take().texts)
            counts.append(count)
    assert counts[1] < 0.8 * counts[0]
