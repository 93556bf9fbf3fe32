"""Whatever callers, faults and memory do: everybody is answered, nothing leaks, nobody stalls."""

from __future__ import annotations

from typing import NamedTuple

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from engine.errors import Overloaded
from engine.llm.scheduler import NeverFits, SchedulerConfig, StepPlan, StepShape
from engine.llm.sequence import Sequence, SequenceState
from tests.fakes.llm_simulator import Simulator

pytestmark = pytest.mark.property

BLOCK_SIZE = 4
MAX_WAITING = 6


class View(NamedTuple):
    """What a rollback must restore."""

    state: SequenceState
    tokens: tuple[int, ...]
    num_computed: int
    blocks: tuple[int, ...]
    laxity_s: float


def view_of(sequence: Sequence) -> View:
    return View(
        sequence.state,
        sequence.tokens(0, sequence.num_tokens),
        sequence.num_computed,
        tuple(sequence.blocks),
        sequence.laxity_s,
    )


class SchedulerMachine(RuleBasedStateMachine):
    """A tiny cache under random load. A step may be open while callers come and go."""

    def __init__(self) -> None:
        super().__init__()
        self.plan: StepPlan | None = None
        self.live: list[Sequence] = []
        self.prompts: dict[int, list[int]] = {}

    @initialize(
        num_blocks=st.integers(3, 14),
        max_batch_size=st.integers(1, 5),
        max_preemptions=st.integers(0, 3),
        swap_ms=st.sampled_from([0.0, 0.001]),
        min_rate=st.sampled_from([0.0, 120.0]),
        preempt_ratio=st.sampled_from([0.0, 0.3, 1.0]),
        prefix_cache=st.booleans(),
        taught=st.booleans(),
    )
    def build(
        self,
        num_blocks: int,
        max_batch_size: int,
        max_preemptions: int,
        swap_ms: float,
        min_rate: float,
        preempt_ratio: float,
        prefix_cache: bool,
        taught: bool,
    ) -> None:
        config = SchedulerConfig(
            max_batch_size=max_batch_size,
            max_seq_length=48,
            max_waiting=MAX_WAITING,
            max_step_ms=8.0,
            idle_step_ms=12.0,
            min_chunk_tokens=2,
            max_chunk_tokens=12,
            max_wait_ms=200.0,
            min_rate=min_rate,
            preempt_ratio=preempt_ratio,
            scheduler_interval=20.0,
            max_preemptions=max_preemptions,
            swap_ms_per_block=swap_ms,
            max_swapped_blocks=num_blocks if swap_ms else 0,
        )
        self.sim = Simulator(
            config,
            num_blocks=num_blocks,
            block_size=BLOCK_SIZE,
            prefix_cache=prefix_cache,
            taught=taught,
        )

    @rule(
        prompt=st.one_of(
            st.integers(1, 40),
            # So that prefixes are shared.
            st.builds(lambda same, own: [1] * same + [own], st.integers(4, 24), st.integers(0, 9)),
        ),
        max_tokens=st.one_of(st.none(), st.integers(1, 20)),
        rank=st.integers(0, 2),
        tenant=st.sampled_from(["a", "b"]),
        patience_s=st.sampled_from([None, 0.03, 1.0]),
    )
    def submit(
        self,
        prompt: int | list[int],
        max_tokens: int | None,
        rank: int,
        tenant: str,
        patience_s: float | None,
    ) -> None:
        deadline = None if patience_s is None else self.sim.now + patience_s
        try:
            sequence = self.sim.submit(
                prompt, max_tokens, rank=rank, tenant=tenant, deadline=deadline
            )
        except NeverFits:
            num_prompt = prompt if isinstance(prompt, int) else len(prompt)
            num_slots = self.sim.pool.num_blocks * BLOCK_SIZE
            assert num_prompt + (max_tokens or 1) > min(48, num_slots + 1)
        except Overloaded:
            assert self.sim.scheduler.statistics().waiting >= MAX_WAITING
        else:
            self.live.append(sequence)

    @precondition(lambda self: self.live)
    @rule(data=st.data())
    def cancel(self, data: st.DataObject) -> None:
        self.sim.cancel(data.draw(st.sampled_from([sequence.key for sequence in self.live])))
        if self.plan is None:
            self.forget_ended()

    def guess(self, num_right: int, num_wrong: int) -> None:
        for sequence in self.live:
            if sequence.state is SequenceState.RUNNING and sequence.num_to_compute == 1:
                self.sim.guess(sequence, num_right, num_wrong)

    @precondition(lambda self: self.live)
    @rule(data=st.data(), rate=st.sampled_from([0.0, 30.0, 1000.0]))
    def release(self, data: st.DataObject, rate: float) -> None:
        key = data.draw(st.sampled_from([sequence.key for sequence in self.live]))
        self.sim.scheduler.set_release(key, 0, rate, self.sim.now)

    @precondition(lambda self: self.plan is None)
    @rule(max_rows=st.sampled_from([None, None, 1, 3]))
    def begin(self, max_rows: int | None) -> None:
        self.plan = self.sim.begin(max_rows)
        if self.plan is None:
            assert not self.sim.scheduler.has_work or self.sim.waits_for_readers
            return
        self.check_plan(self.plan, max_rows)

    def check_plan(self, plan: StepPlan, max_rows: int | None) -> None:
        config = self.sim.config
        keys = [item.sequence.key for item in plan.items]
        assert len(keys) == len(set(keys)), "planned twice"
        assert len(keys) <= config.max_batch_size
        for item in plan.items:
            sequence = item.sequence
            end = item.start + len(item.token_ids)
            assert item.start == sequence.num_computed
            assert end <= len(sequence.blocks) * BLOCK_SIZE, "no block for a token"
            known = end - item.num_drafts
            assert item.token_ids[: known - item.start] == sequence.tokens(item.start, known)
            assert item.samples == (known == sequence.num_tokens)
        if max_rows is not None:
            assert sum(len(item.token_ids) for item in plan.items) <= max_rows
            return
        assert plan.shape.num_prefill_tokens <= config.max_chunk_tokens
        waits_for_reader = {
            s.key for s in self.live if s.state is SequenceState.RUNNING and s.laxity_s == 0.0
        }
        decoding = {s.key for s in self.live if s.num_left > 0 and s.num_to_compute == 1}
        assert waits_for_reader & decoding <= set(keys), "a decode was left out"
        self.check_duration(plan)

    def check_duration(self, plan: StepPlan) -> None:
        """With the true cost known, nobody who decodes waits longer than the bound."""
        if plan.shape.num_decodes == 0 or plan.swap_in or plan.swap_out:
            return
        predict, config = self.sim.cost.predict, self.sim.config
        decodes = [item for item in plan.items if item.samples and item.start > 0]
        chunks = [item for item in plan.items if len(item.token_ids) > 1 + item.num_drafts]
        least = StepShape.of_decodes([i.sequence for i in decodes if i not in chunks])
        if chunks:
            least = least.with_chunk(chunks[0].start, config.min_chunk_tokens)
        bound = max(config.decode_step_ms, predict(least))
        assert predict(plan.shape) <= bound + 1e-6

    @precondition(lambda self: self.plan is not None)
    @rule()
    def commit(self) -> None:
        assert self.plan is not None
        self.sim.complete(self.plan)
        self.plan = None
        self.forget_ended()

    @precondition(lambda self: self.plan is not None)
    @rule()
    def fail(self) -> None:
        assert self.plan is not None
        self.sim.fail(self.plan)
        self.plan = None
        self.forget_ended()

    @precondition(lambda self: self.plan is None)
    @rule(num_steps=st.integers(1, 6), num_right=st.integers(0, 2), num_wrong=st.integers(0, 1))
    def run_some_steps(self, num_steps: int, num_right: int, num_wrong: int) -> None:
        for _ in range(num_steps):
            self.guess(num_right, num_wrong)
            self.begin(None)
            if self.plan is None:
                return
            self.commit()
            self.sim.check()

    @precondition(lambda self: self.plan is None)
    @rule()
    def plan_and_roll_back(self) -> None:
        """Twice, because the first may preempt, which stays."""
        for _ in range(2):
            pool = self.sim.pool
            self.sim.expire()
            for sequence in self.live:
                sequence.update_laxity(self.sim.now)
            before = [view_of(sequence) for sequence in self.live]
            available = pool.num_available
            plan = self.sim.begin()
            if plan is None:
                return
            preempted = self.sim.scheduler._open[1].preempted
            self.sim.fail(plan)
            self.sim.check()
            if not preempted:
                assert [view_of(sequence) for sequence in self.live] == before
                assert pool.num_available == available

    @rule(pause_s=st.sampled_from([0.001, 0.05, 0.3]))
    def wait(self, pause_s: float) -> None:
        self.sim.now += pause_s

    @invariant()
    def sums_agree(self) -> None:
        if hasattr(self, "sim"):
            self.sim.check()

    def forget_ended(self) -> None:
        self.live = [s for s in self.live if s.state is not SequenceState.FINISHED]

    def teardown(self) -> None:
        if not hasattr(self, "sim"):
            return
        if self.plan is not None:
            self.sim.complete(self.plan)
        self.sim.drain(max_steps=2000)
        assert self.sim.pool.num_owned == 0
        for key, answer in self.sim.answers.items():
            assert answer.reason, f"sequence {key} was never answered"
        statistics = self.sim.scheduler.statistics()
        assert (statistics.running, statistics.waiting) == (0, 0)


TestScheduler = SchedulerMachine.TestCase
TestScheduler.settings = settings(max_examples=100, stateful_step_count=40, deadline=None)
