"""Whatever workers and callers do, in any order: every accepted prompt is answered once."""

from __future__ import annotations

import asyncio

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from engine.base import TextLane
from engine.errors import Overloaded, Unavailable
from engine.types import Dropped, DropReason, Policy
from tests.fakes.llm_client_bench import STEP_S, LlmClientBench
from tests.fakes.virtual_time import VirtualTimeLoop, run_until, settle

pytestmark = pytest.mark.property

NUMBER = st.integers(0, 9)
TEXTS = ("a", "a b c", "a b c d e f", "!crash", "!crash-at 2 b c d", "!hold", "!refuse overloaded")
OFFER = st.tuples(st.just("offer"), NUMBER, st.sampled_from([None, 0.0, 0.01, 0.2, 5.0]))
OTHER = st.tuples(
    st.sampled_from(["open", "close", "cancel", "wait", "die", "break", "pause", "resume"]),
    NUMBER,
    st.none(),
)
STEPS = st.lists(st.one_of(OFFER, OFFER, OTHER), min_size=10, max_size=60)


class Scenario:
    """Plays the steps on a started engine."""

    def __init__(self) -> None:
        self.bench = LlmClientBench(max_waiting=8)
        self.bench.on_emit = self.come_back_in
        self.lanes: list[TextLane] = []
        self.accepted: list[int] = []

    def step(self, name: str, number: int, budget_s: float | None) -> None:
        host = self.bench.host
        match name:
            case "open":
                policy = list(Policy)[number % 3]
                self.lanes.append(self.bench.lane(policy, capacity=1 + number % 4))
            case "close" if self.lanes:
                self.lanes.pop(number % len(self.lanes)).close()
            case "offer" if self.lanes:
                text = TEXTS[(number + len(self.accepted)) % len(TEXTS)]
                self.offer(self.lanes[number % len(self.lanes)], text, budget_s)
            case "cancel" if self.accepted:
                for lane in self.lanes:
                    lane.cancel(self.accepted[-1 - number % len(self.accepted)])
            case "die" | "break" if host.llm is not None:
                host.die(can_recover=name == "die" or number > 3)
            case "pause":
                host.pause()
            case "resume":
                host.resume()

    def offer(self, lane: TextLane, text: str, budget_s: float | None) -> None:
        now = asyncio.get_running_loop().time()
        deadline = None if budget_s is None else now + budget_s
        try:
            self.accepted.append(self.bench.ask(lane, text, deadline=deadline))
        except (Overloaded, Unavailable):
            pass

    def come_back_in(self) -> None:
        """From inside ``emit``."""
        newest = next(reversed(self.bench.outcomes.values()), None)
        if newest == Dropped(DropReason.DEADLINE) and len(self.lanes) > 1:
            self.lanes.pop().close()


@given(steps=STEPS)
@settings(max_examples=150)
def test_every_accepted_prompt_is_answered_exactly_once(
    steps: list[tuple[str, int, float | None]],
) -> None:
    async def play() -> None:
        scenario = Scenario()
        bench, loop = scenario.bench, asyncio.get_running_loop()
        await bench.engine.start()
        for number in range(3):
            scenario.step("open", number, None)
        for name, number, budget_s in steps:
            scenario.step(name, number, budget_s)
            bench.engine.check_integrity()
            if name == "wait":
                await run_until(loop.time() + number * STEP_S)
            elif number % 2:
                await settle()
            bench.engine.check_integrity()
        await bench.engine.aclose(loop.time() + 0.1)
        bench.engine.check_integrity()
        assert sorted(bench.outcomes) == scenario.accepted
        assert bench.faults == []
        assert bench.statistics.accepted == len(scenario.accepted)
        assert bench.statistics.in_flight == bench.statistics.queued == 0

    with asyncio.Runner(loop_factory=VirtualTimeLoop) as runner:
        runner.run(play())
