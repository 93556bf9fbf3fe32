"""Whatever workers and callers do, in any order: every accepted item is answered exactly once."""

from __future__ import annotations

import asyncio
from collections import Counter

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from engine.batching.batcher import BatcherLane, ModelBatcher
from engine.config import ModelConfig
from engine.errors import Overloaded, Unavailable
from engine.types import Dropped, DropReason, Item, LaneSpec, Outcome, Policy, Progress, Result
from tests.fakes.executor import FakeExecutor
from tests.fakes.virtual_time import VirtualTimeLoop, run_until, settle

pytestmark = pytest.mark.property

NUMBER = st.integers(0, 9)
OFFER = st.tuples(st.just("offer"), NUMBER, st.sampled_from([None, 0.0, 0.01, 0.2, 5.0]))
OTHER = st.tuples(
    st.sampled_from(["open", "close", "cancel", "wait", "finish", "kill", "revive", "break"]),
    NUMBER,
    st.none(),
)
STEPS = st.lists(st.one_of(OFFER, OFFER, OTHER), min_size=20, max_size=80)


class Scenario:
    """Plays the steps; ``told`` counts what each (lane, item) was told."""

    def __init__(self, workers: int, prefetch: int, slab_items: int) -> None:
        config = ModelConfig(max_batch_size=3, batch_timeout_millis=20.0, max_concurrent_requests=8)
        self.batcher = ModelBatcher("m", config)
        self.executor = FakeExecutor(
            self.batcher, workers=workers, prefetch=prefetch, slab_items=slab_items
        )
        self.batcher.start(self.executor)
        self.workers = workers
        self.lanes: list[BatcherLane] = []
        self.accepted: list[int] = []
        self.told: Counter[int] = Counter()
        self.num_offered = 0
        self.faults: list[AssertionError] = []
        for number in range(3):
            self.step("open", number, None)

    def step(self, name: str, number: int, budget_s: float | None) -> None:
        match name:
            case "open":
                policy = list(Policy)[number % 3]
                spec = LaneSpec(model="m", policy=policy, capacity=1 + number % 4)
                self.lanes.append(self.batcher.open_lane(spec, self.emit))
            case "close" if self.lanes:
                self.lanes.pop(number % len(self.lanes)).close()
            case "offer" if self.lanes:
                self.offer(self.lanes[number % len(self.lanes)], budget_s)
            case "cancel" if self.accepted:
                for lane in self.lanes:
                    lane.cancel(self.accepted[-1 - number % len(self.accepted)])
            case "finish" if self.executor.busy:
                self.executor.finish(self.executor.busy[number % len(self.executor.busy)])
            case "kill":
                self.executor.kill(number % self.workers)
            case "revive":
                self.executor.revive(number % self.workers)
            case "break" if number < 3:
                self.executor.break_down()

    def offer(self, lane: BatcherLane, budget_s: float | None) -> None:
        self.num_offered += 1
        now = asyncio.get_running_loop().time()
        deadline = None if budget_s is None else now + budget_s
        item = Item(id=self.num_offered, payload=b"%d" % self.num_offered, deadline=deadline)
        try:
            lane.offer(item)
        except (Overloaded, Unavailable):
            return
        self.accepted.append(item.id)

    def emit(self, item_id: int, outcome: Progress | Outcome) -> None:
        self.told[item_id] += 1
        try:
            self.batcher.check_integrity()
            assert not isinstance(outcome, Result) or outcome.data == b"%d" % item_id
        except AssertionError as fault:  # the batcher would log it and go on
            self.faults.append(fault)
        if outcome == Dropped(DropReason.DEADLINE) and self.lanes:
            self.offer(self.lanes[0], None)  # emit may come back in


@given(
    workers=st.integers(1, 3),
    prefetch=st.integers(0, 1),
    slab_items=st.sampled_from([1, 2, 100]),
    steps=STEPS,
)
@settings(max_examples=150)
def test_every_accepted_item_is_answered_exactly_once(
    workers: int, prefetch: int, slab_items: int, steps: list[tuple[str, int, float | None]]
) -> None:
    async def play() -> None:
        scenario = Scenario(workers, prefetch, slab_items)
        batcher, loop = scenario.batcher, asyncio.get_running_loop()
        for name, number, budget_s in steps:
            scenario.step(name, number, budget_s)
            batcher.check_integrity()
            if name == "wait":
                await run_until(loop.time() + number * 0.01)
            elif number % 2:
                await settle()
            batcher.check_integrity()
        await batcher.aclose(loop.time() + 0.1)
        for worker in range(workers):
            scenario.executor.kill(worker)
        batcher.check_integrity()
        assert scenario.faults == []
        assert scenario.told == Counter(scenario.accepted)
        assert batcher.num_in_flight == batcher.num_queued == 0
        assert batcher.counters.accepted == len(scenario.accepted)
        assert scenario.executor.slab == set()

    with asyncio.Runner(loop_factory=VirtualTimeLoop) as runner:
        runner.run(play())
