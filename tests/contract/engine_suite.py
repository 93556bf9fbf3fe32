"""The contract of the engine boundary, once for every implementation.

A test module subclasses :class:`EngineContract` as ``TestSomething`` and says how to build the
engine; the facts below are inherited.
"""

from __future__ import annotations

import asyncio
import functools
from collections.abc import Callable, Coroutine
from dataclasses import dataclass
from typing import Any

import pytest

from engine.base import Engine, Lane
from engine.errors import InvalidInput, Overloaded, Unavailable, UnknownModel
from engine.types import (
    Cancelled,
    Dropped,
    DropReason,
    Failed,
    Item,
    LaneSpec,
    Outcome,
    Policy,
    Progress,
    Result,
)
from tests.fakes.virtual_time import VirtualTimeLoop

WAIT_S = 10.0
SUPERSEDED = Dropped(DropReason.SUPERSEDED)
DEADLINE = Dropped(DropReason.DEADLINE)


@dataclass(kw_only=True)
class Built:
    """An engine with one model, ``model`` in version "1", and what the suite needs to steer it.

    ``expected`` is the right answer to a payload. ``occupy(seconds)`` makes the model do nothing
    else for so long. ``payload`` makes the payload number n. ``faulty`` makes an item one that is
    at fault.
    """

    engine: Engine
    model: str
    expected: Callable[[bytes], bytes]
    occupy: Callable[[float], None]
    faulty: Callable[[Item], Item]
    payload: Callable[[int], bytes] = lambda number: b"payload %d" % number


class Recorder:
    """The streams' side: opens lanes and writes down what they are told, and when."""

    def __init__(self, built: Built) -> None:
        self.built = built
        self.told: list[tuple[float, int, Outcome]] = []
        self.progress: dict[int, str] = {}
        self.payloads: dict[int, bytes] = {}
        self.deadlines: dict[int, float] = {}
        self._news = asyncio.Event()

    def lane(self, policy: Policy = Policy.FIFO, capacity: int = 50) -> Lane:
        spec = LaneSpec(model=self.built.model, policy=policy, capacity=capacity)
        return self.built.engine.open_lane(spec, self._emit)

    def offer(self, lane: Lane, budget_s: float | None = None, *, is_faulty: bool = False) -> int:
        """Offer an item with a payload of its own; returns its id."""
        item_id = len(self.payloads)
        payload = self.built.payload(item_id)
        deadline = None
        if budget_s is not None:
            # Asked once: a timer that is set moves uvloop's clock.
            deadline = self.deadlines[item_id] = now() + budget_s
        item = Item(id=item_id, payload=payload, deadline=deadline)
        lane.offer(self.built.faulty(item) if is_faulty else item)
        self.payloads[item_id] = payload
        self.check_books()
        return item_id

    async def wait_all(self) -> dict[int, Outcome]:
        """Wait until every accepted item was told; fails if one was told twice or wrongly."""
        async with asyncio.timeout(WAIT_S):
            while len(self.told) < len(self.payloads):
                self._news.clear()
                await self._news.wait()
        await asyncio.sleep(0.01)  # a second outcome would come now
        self.check_books()
        return self.outcomes()

    def outcomes(self) -> dict[int, Outcome]:
        outcomes = {item_id: outcome for _, item_id, outcome in self.told}
        assert len(outcomes) == len(self.told)
        for item_id, outcome in outcomes.items():
            if isinstance(outcome, Result):
                assert outcome.data == self.built.expected(self.payloads[item_id])
                assert (outcome.model, outcome.version) == (self.built.model, "1")
        return outcomes

    def check_books(self) -> None:
        (model,) = self.built.engine.statistics().models
        dropped = sum(model.dropped.values())
        answered = model.results + dropped + model.failed + model.cancelled
        assert model.accepted == answered + model.in_flight
        assert model.in_flight >= model.queued

    def _emit(self, item_id: int, outcome: Progress | Outcome) -> None:
        if isinstance(outcome, Progress):
            assert all(item_id != told_id for _, told_id, _ in self.told), "after the outcome"
            self.progress[item_id] = self.progress.get(item_id, "") + outcome.text
            return
        self.told.append((now(), item_id, outcome))
        self._news.set()


def now() -> float:
    return asyncio.get_running_loop().time()


Fact = Callable[["EngineContract", Recorder], Coroutine[Any, Any, None]]


def fact(test: Fact) -> Callable[[EngineContract], None]:
    """Run an async fact on the implementation's kind of loop, with a started engine."""

    @functools.wraps(test, assigned=("__module__", "__name__", "__qualname__", "__doc__"))
    def run(self: EngineContract) -> None:
        with asyncio.Runner(loop_factory=self.loop_factory) as runner:
            runner.run(self.play(test))

    del run.__wrapped__  # pytest would ask for the arguments of the fact
    return run


class EngineContract:
    """Facts about every engine. Times are exact on the virtual clock, else within ``late_s``.

    On the real clock ``late_s`` is generous to a busy machine, and still less than half of the time
    for which the model is stuck.
    uvloop rounds timers to milliseconds and may be up to half of one early: ``early_s``.
    """

    loop_factory: type[asyncio.AbstractEventLoop] = VirtualTimeLoop
    late_s = 0.001
    early_s = 0.0

    def build(self) -> Built:
        raise NotImplementedError

    async def play(self, test: Fact) -> None:
        built = self.build()
        await built.engine.start()
        try:
            await test(self, Recorder(built))
        finally:
            await built.engine.aclose(now())

    # --- one outcome

    @fact
    async def test_every_item_gets_its_own_answer_in_any_company(self, streams: Recorder) -> None:
        lanes = [streams.lane() for _ in range(4)]
        for number in range(40):
            streams.offer(lanes[number % 3 if number % 4 else 3])
            if number % 5 == 0:
                await asyncio.sleep(0)
        outcomes = await streams.wait_all()
        assert all(isinstance(outcome, Result) for outcome in outcomes.values())

    @fact
    async def test_an_item_at_fault_fails_alone(self, streams: Recorder) -> None:
        lane = streams.lane()
        good = [streams.offer(lane) for _ in range(2)]
        faulty = streams.offer(lane, is_faulty=True)
        good.append(streams.offer(lane))
        outcomes = await streams.wait_all()
        failed = outcomes[faulty]
        assert isinstance(failed, Failed)
        assert isinstance(failed.error, InvalidInput)
        assert all(isinstance(outcomes[item_id], Result) for item_id in good)

    @fact
    async def test_ids_belong_to_their_lane(self, streams: Recorder) -> None:
        other = Recorder(streams.built)
        assert streams.offer(streams.lane()) == other.offer(other.lane()) == 0
        for outcomes in (await streams.wait_all(), await other.wait_all()):
            assert isinstance(outcomes[0], Result)

    # --- deadlines

    @fact
    async def test_a_deadline_is_told_on_time_while_the_model_is_stuck(
        self, streams: Recorder
    ) -> None:
        lane = streams.lane()
        streams.built.occupy(5.0)
        await asyncio.sleep(0.01)
        for budget_s in (0.2, 0.1):
            streams.offer(lane, budget_s=budget_s)
        outcomes = await streams.wait_all()
        assert set(outcomes.values()) == {DEADLINE}
        for when, item_id, _ in streams.told:
            late_s = when - streams.deadlines[item_id]
            assert -self.early_s <= late_s <= self.late_s

    @fact
    async def test_an_expired_item_is_accepted_and_told_at_once(self, streams: Recorder) -> None:
        streams.offer(streams.lane(), budget_s=-1.0)
        began = now()
        assert await streams.wait_all() == {0: DEADLINE}
        assert streams.told[0][0] <= began + self.late_s

    # --- full lanes

    @fact
    async def test_a_full_fifo_lane_refuses_and_queues_nothing(self, streams: Recorder) -> None:
        await self.fill_up(streams, Policy.FIFO)

    @fact
    async def test_a_full_lossless_lane_refuses_and_queues_nothing(self, streams: Recorder) -> None:
        await self.fill_up(streams, Policy.LOSSLESS)

    async def fill_up(self, streams: Recorder, policy: Policy) -> None:
        lane = streams.lane(policy, capacity=2)
        streams.built.occupy(0.2)
        await asyncio.sleep(0.01)
        refusals: list[Overloaded] = []
        while not refusals and len(streams.payloads) < 50:  # a worker may hold some already
            try:
                streams.offer(lane)
            except Overloaded as refusal:
                refusals.append(refusal)
            await asyncio.sleep(0)
        assert refusals[0].retryable
        streams.check_books()
        outcomes = await streams.wait_all()
        assert all(isinstance(outcome, Result) for outcome in outcomes.values())

    @fact
    async def test_latest_tells_superseded_inside_the_offer(self, streams: Recorder) -> None:
        lane = streams.lane(Policy.LATEST, capacity=1)
        streams.offer(lane)
        streams.offer(lane)
        assert streams.outcomes() == {0: SUPERSEDED}
        outcomes = await streams.wait_all()
        assert isinstance(outcomes[1], Result)

    # --- cancel and close

    @fact
    async def test_cancel_answers_now_and_only_once(self, streams: Recorder) -> None:
        lane = streams.lane()
        streams.built.occupy(0.1)
        item_id = streams.offer(lane)
        lane.cancel(item_id)
        lane.cancel(item_id)
        lane.cancel(4711)
        assert streams.outcomes() == {item_id: Cancelled()}
        await asyncio.sleep(0.2)
        assert await streams.wait_all() == {item_id: Cancelled()}

    @fact
    async def test_close_answers_everything_and_only_once(self, streams: Recorder) -> None:
        lane, other = streams.lane(), streams.lane()
        mine = [streams.offer(lane) for _ in range(3)]
        streams.offer(other)
        lane.close()
        lane.close()
        lane.cancel(mine[0])
        assert streams.outcomes() == dict.fromkeys(mine, Cancelled())
        with pytest.raises(Unavailable):
            lane.offer(Item(id=99, payload=b""))
        outcomes = await streams.wait_all()
        assert isinstance(outcomes[3], Result)

    @fact
    async def test_abandoned_lanes_cost_nothing(self, streams: Recorder) -> None:
        streams.built.occupy(0.1)
        for number in range(1000):
            lane = streams.lane()
            streams.offer(lane, budget_s=60.0)
            if number % 10 == 0:
                await asyncio.sleep(0)
            lane.close()
        outcomes = await streams.wait_all()
        assert set(map(type, outcomes.values())) <= {Cancelled, Result}
        await asyncio.sleep(0.2)  # the model is free again
        (model,) = streams.built.engine.statistics().models
        assert (model.lanes, model.queued, model.in_flight) == (0, 0, 0)

        lane = streams.lane()  # and the engine still serves
        streams.offer(lane)
        assert isinstance((await streams.wait_all())[1000], Result)

    # --- the engine

    @fact
    async def test_unknown_models_and_versions_are_refused(self, streams: Recorder) -> None:
        engine, model = streams.built.engine, streams.built.model
        with pytest.raises(UnknownModel):
            engine.open_lane(LaneSpec(model="no-such-model"), lambda *_: None)
        with pytest.raises(UnknownModel):
            engine.open_lane(LaneSpec(model=model, version="2"), lambda *_: None)
        engine.open_lane(LaneSpec(model=model, version="1"), lambda *_: None).close()

    @fact
    async def test_a_started_engine_is_ready(self, streams: Recorder) -> None:
        statistics = streams.built.engine.statistics()
        assert statistics.ready
        assert [(m.reason, m.workers_alive) for m in statistics.models] == [("", 1)]

    @fact
    async def test_closing_finishes_what_it_can(self, streams: Recorder) -> None:
        lane = streams.lane()
        for _ in range(5):
            streams.offer(lane)
        await streams.built.engine.aclose(now() + 5.0)
        outcomes = streams.outcomes()
        assert len(outcomes) == 5
        assert all(isinstance(outcome, Result) for outcome in outcomes.values())

    @fact
    async def test_closing_answers_everybody_at_its_deadline(self, streams: Recorder) -> None:
        lane = streams.lane()
        streams.built.occupy(5.0)
        await asyncio.sleep(0.01)
        for _ in range(5):
            streams.offer(lane)
        deadline = now() + 0.1
        await streams.built.engine.aclose(deadline)
        assert streams.outcomes() == dict.fromkeys(range(5), Dropped(DropReason.SHUTDOWN))
        assert max(when for when, _, _ in streams.told) <= deadline + self.late_s

    @fact
    async def test_a_closed_engine_takes_nothing(self, streams: Recorder) -> None:
        lane, engine = streams.lane(), streams.built.engine
        await engine.aclose(now() + 1.0)
        await engine.aclose(now())
        with pytest.raises(Unavailable):
            lane.offer(Item(id=1, payload=b""))
        with pytest.raises(Unavailable):
            streams.lane()
        lane.cancel(1)
        lane.close()
        assert not engine.statistics().ready
        streams.check_books()
