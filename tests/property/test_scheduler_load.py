"""Three hundred requests against a tiny cache, with a fault at every boundary of a step."""

from __future__ import annotations

import random

import pytest

from engine.errors import Overloaded
from engine.llm.scheduler import NeverFits, SchedulerConfig, StepPlan
from engine.llm.sequence import SequenceState
from tests.fakes.llm_simulator import Simulator

pytestmark = pytest.mark.property

NUM_REQUESTS = 300
SYSTEM_PROMPT = [7] * 10


class Storm:
    """Random callers around the simulator's steps."""

    def __init__(self, seed: int, *, swap: bool) -> None:
        self.random = random.Random(seed)
        config = SchedulerConfig(
            max_batch_size=6,
            max_seq_length=64,
            max_waiting=12,
            max_step_ms=12.0,
            idle_step_ms=24.0,
            min_chunk_tokens=3,
            max_chunk_tokens=24,
            max_wait_ms=600.0,
            max_preemptions=2,
            preempt_ratio=0.5,
            swap_ms_per_block=0.001 if swap else 0.0,
            max_swapped_blocks=20 if swap else 0,
        )
        self.sim = Simulator(config, num_blocks=24, block_size=4)
        self.num_submitted = 0
        self.num_refused = 0

    def run(self) -> None:
        while self.num_submitted < NUM_REQUESTS or self.sim.scheduler.has_work:
            self.people_come_and_go()
            self.offer_guesses()
            plan = self.sim.begin()
            self.sim.check()
            self.people_come_and_go()  # while the step runs
            if plan is not None:
                self.end_step(plan)
            self.sim.check()

    def end_step(self, plan: StepPlan) -> None:
        planned = [item.sequence.key for item in plan.items]
        assert len(planned) == len(set(planned))
        if planned and self.random.random() < 0.1:
            self.sim.cancel(self.random.choice(planned))
        if self.random.random() < 0.1:
            self.sim.fail(plan)
        else:
            self.sim.complete(plan)

    def people_come_and_go(self) -> None:
        sim = self.sim
        if self.num_submitted < NUM_REQUESTS and self.random.random() < 0.2:
            self.submit()
        live = [key for key, answer in sim.answers.items() if not answer.reason]
        if live and self.random.random() < 0.05:
            sim.cancel(self.random.choice(live))
        if live and self.random.random() < 0.3:
            rate = self.random.choice([0.0, 30.0])
            sim.scheduler.set_release(self.random.choice(live), 0, rate, sim.now)
        if self.random.random() < 0.05:
            sim.now += 0.1

    def submit(self) -> None:
        self.num_submitted += 1
        shared = SYSTEM_PROMPT[: self.random.choice([0, 10])]
        prompt = [*shared, *self.random.choices(range(90), k=self.random.randint(1, 40))]
        patience_s = self.random.choice([None, None, 0.3])
        try:
            self.sim.submit(
                prompt,
                self.random.choice([None, 1, 5, 20]),
                rank=self.random.randint(0, 2),
                tenant=self.random.choice("ab"),
                weight=self.random.choice([1.0, 3.0]),
                deadline=None if patience_s is None else self.sim.now + patience_s,
            )
        except (NeverFits, Overloaded):
            self.num_refused += 1

    def offer_guesses(self) -> None:
        for key, answer in self.sim.answers.items():
            sequence = None if answer.reason else self.sim.scheduler.get(key)
            if sequence is None or sequence.state is not SequenceState.RUNNING:
                continue
            if sequence.num_to_compute == 1 and self.random.random() < 0.3:
                self.sim.guess(sequence, self.random.randint(0, 3), self.random.randint(0, 1))


@pytest.mark.parametrize("swap", [False, True], ids=["recompute", "swap"])
@pytest.mark.parametrize("seed", range(4))
def test_everybody_is_answered_and_every_block_comes_back(seed: int, swap: bool) -> None:
    storm = Storm(seed, swap=swap)
    storm.run()
    sim = storm.sim
    assert len(sim.answers) + storm.num_refused == NUM_REQUESTS
    assert {answer.reason for answer in sim.answers.values()} == {"length", "cancelled", "deadline"}
    assert sim.pool.num_owned == 0
    statistics = sim.scheduler.statistics()
    assert statistics.preemptions > 0
    assert statistics.rollbacks > 0
    assert statistics.cached_prompt_tokens > 0
    assert statistics.accepted > 0
    assert (statistics.swaps > 0) == swap


def test_an_answer_does_not_depend_on_its_company() -> None:
    """Joins, leaves, preemptions, swaps, prefix hits and drafts change no token."""
    storm = Storm(5, swap=True)
    storm.run()
    for key, answer in storm.sim.answers.items():
        so_far = list(storm.sim.prompts[key])
        for token in answer.tokens:
            assert token == storm.sim.model.next_token(so_far)
            so_far.append(token)
