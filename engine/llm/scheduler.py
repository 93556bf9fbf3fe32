"""The scheduler: who computes what in the next step. Pure: ``now`` is an argument, no torch.

Each step is a transaction: ``plan`` decides and reserves, the caller runs it, then ``commit``
takes the sampled tokens in or ``rollback`` gives everything back. Sequences join and leave at any
step. The duties have a module each in ``engine.llm.scheduling``: ``planner`` (decodes, room),
``prefill`` (chunks, newcomers), ``order``, ``fair_share``, ``admission``, ``preemption``.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

from engine.errors import Overloaded
from engine.llm.blocks import BlockPool
from engine.llm.scheduling.admission import Admission
from engine.llm.scheduling.fair_share import FairShare
from engine.llm.scheduling.order import PrefillOrder
from engine.llm.scheduling.plan import (
    NeverFits,
    PlannedItem,
    SchedulerConfig,
    SchedulerStatistics,
    StepPlan,
    SwapMove,
)
from engine.llm.scheduling.planner import Planner
from engine.llm.scheduling.roster import Roster
from engine.llm.scheduling.step_builder import StepBuilder
from engine.llm.sequence import Sequence, SequenceEvent, SequenceState
from engine.llm.step_cost import StepCost, StepShape

__all__ = [
    "NeverFits",
    "PlannedItem",
    "Scheduler",
    "SchedulerConfig",
    "SchedulerStatistics",
    "StepPlan",
    "StepShape",
    "SwapMove",
]

_NO_LIMIT = 1 << 30
_RETRY_S = 1.0
_CHEAPER_SALT = b"cheaper"


@dataclass(slots=True)
class _Totals:
    steps: int = 0
    rollbacks: int = 0
    planned_items: int = 0
    tokens: int = 0
    prompt_tokens: int = 0
    cached_prompt_tokens: int = 0
    computed_tokens: int = 0
    preemptions: int = 0
    swaps: int = 0
    starvations: int = 0
    drafted: int = 0
    accepted: int = 0


class Scheduler:
    """Owns every accepted sequence until it ends; at most one step is open at a time.

    Promises, with the cost model right: a running stream waits at most ``max_step_ms``, or one
    decode step with the least chunk, for its next token; a prompt that has started gets a chunk
    in bounded turns; a lower class starts within its ageing bound as long as places become free;
    ``max_preemptions`` bounds how often one sequence gives way. One thread calls everything.
    """

    def __init__(self, config: SchedulerConfig, pool: BlockPool, cost: StepCost) -> None:
        self._config = config
        self._pool = pool
        self._cost = cost
        self._fair_share = FairShare()
        self._roster = Roster(pool)
        self._order = PrefillOrder(self._fair_share, config.max_wait_ms / 1000)
        self._admission = Admission(config, pool, cost)
        self._planner = Planner(config, pool, cost, self._roster, self._order, self._admission)
        self._open: tuple[StepPlan, StepBuilder] | None = None
        self._num_planned = 0
        self._next_due = math.inf  # nothing expires or starves before
        self._totals = _Totals()

    @property
    def has_work(self) -> bool:
        return len(self._roster) > 0

    def get(self, key: int) -> Sequence | None:
        """A sequence that has not ended."""
        return self._roster.get(key)

    def submit(self, sequence: Sequence, now: float) -> None:
        """Accept a new sequence; it ends by ``finish``, ``cancel`` or ``expire``.

        Raises:
            NeverFits: it could not run even alone.
            Overloaded: ``max_waiting`` are waiting. Nothing was accepted.
        """
        if sequence.state is not SequenceState.WAITING or sequence.key in self._roster:
            raise ValueError(f"sequence {sequence.key} is not new")
        max_tokens = self._admission.limit_tokens(sequence)
        if len(self._roster.waiting) >= self._config.max_waiting:
            raise Overloaded(
                f"{len(self._roster.waiting)} prompts are waiting already", retry_after_s=_RETRY_S
            )
        sequence.max_tokens = max_tokens
        sequence.num_expected_hits = len(self._pool.match_prefix(sequence)) * self._pool.block_size
        self._roster.add(sequence)
        self._fair_share.join(sequence.tenant)
        self._next_due = min(self._next_due, self._due(sequence))

    def cancel(self, key: int) -> bool:
        """End a sequence; False when it has ended before.

        If the open step runs it, its blocks stay until that step's commit or rollback.
        """
        sequence = self._roster.get(key)
        if sequence is None or sequence.state is SequenceState.ABORTING:
            return False
        if self._open is not None and key in self._open[1].items:
            sequence.apply(SequenceEvent.ABORT)
        else:
            self._remove(sequence, SequenceEvent.END)
        return True

    def finish(self, key: int) -> bool:
        """The answer is complete (end token, stop string, ``max_tokens``); like ``cancel``."""
        return self.cancel(key)

    def expire(self, now: float) -> list[int]:
        """End what is past its deadline, waiting or running; returns the keys.

        Call it once per step: requests that wait too long are counted here too.
        """
        if now < self._next_due:
            return []
        self._next_due = math.inf
        expired = []
        for sequence in self._roster.sequences():
            if sequence.state is SequenceState.ABORTING:
                continue
            self._note_wait(sequence, now)
            if sequence.deadline is not None and now >= sequence.deadline:
                self.cancel(sequence.key)
                expired.append(sequence.key)
            else:
                self._next_due = min(self._next_due, self._due(sequence))
        return expired

    def set_release(self, key: int, released: int, tokens_per_s: float, at: float) -> None:
        """What the pacer of a stream told; unknown keys are ignored."""
        sequence = self._roster.get(key)
        if sequence is not None:
            sequence.set_release(released, tokens_per_s, at)

    def use_cheaper(self, is_on: bool) -> None:
        """The model runs with its cheaper weights from the next step on, or no longer: steps cost
        something else, and prefixes are shared only with what the same weights computed.

        Raises:
            ValueError: a step is open.
        """
        if self._open is not None:
            raise ValueError("a step is open: its weights are settled")
        self._cost.use_cheaper(is_on)
        self._pool.salt = _CHEAPER_SALT if is_on else b""

    def plan(self, now: float, *, max_rows: int | None = None) -> StepPlan | None:
        """Decide on a step and reserve its blocks; None when there is nothing to run.

        ``max_rows`` caps the token rows of this step, for another try after it ran out of memory.
        """
        if self._open is not None:
            raise ValueError("a step is open: commit it or roll it back first")
        if max_rows is not None and max_rows < 1:
            raise ValueError(f"max_rows must be >= 1, got {max_rows}")
        while True:
            builder = self._planner.plan(now, _NO_LIMIT if max_rows is None else max_rows)
            self._totals.preemptions += len(builder.preempted)
            self._totals.swaps += len(builder.swap_out)
            if builder.items or builder.swap_out:
                break
            if not builder.preempted:
                return None
            # Whoever would have run gave way. Now it may start again, if anything can; this ends
            # because nobody gives way more than ``max_preemptions`` times.
        self._num_planned += 1
        plan = builder.build(self._num_planned)
        self._open = (plan, builder)
        return plan

    def commit(self, plan: StepPlan, sampled: Mapping[int, list[int]], now: float) -> None:
        """The step ran. ``sampled`` has, for every item that samples, its new tokens: the accepted
        drafts, if any, and one more. Tokens of sequences that ended meanwhile are ignored.

        Raises:
            ValueError: not the open step, or tokens are missing or too many; nothing changed.
        """
        builder = self._builder_of(plan)
        for item in plan.items:
            _check_tokens(item, sampled.get(item.sequence.key, []))
        self._open = None
        for sequence in builder.prefills:
            self._order.note_served(in_turn=sequence is builder.in_turn)
        for item in plan.items:
            sequence = item.sequence
            if sequence.state is SequenceState.ABORTING:
                self._remove(sequence, SequenceEvent.RELEASE)
                continue
            if sequence.state is not SequenceState.RUNNING:
                self._start(item, plan.planned_at)
            before = builder.reservations[sequence.key].num_computed
            self._take_in(item, sampled.get(sequence.key, []), before)
        self._totals.steps += 1
        self._totals.planned_items += len(plan.items)
        if not plan.swap_in and not plan.swap_out:
            self._cost.observe(plan.shape, (now - plan.planned_at) * 1000)

    def rollback(self, plan: StepPlan) -> None:
        """The step did not run, or failed: every sequence is again what it was after ``plan``'s
        preemptions. Those stay, as does what was evicted from the prefix cache."""
        builder = self._builder_of(plan)
        self._open = None
        builder.undo()
        for item in plan.items:
            if item.sequence.state is SequenceState.ABORTING:
                self._remove(item.sequence, SequenceEvent.RELEASE)
        self._totals.rollbacks += 1

    def statistics(self) -> SchedulerStatistics:
        totals = self._totals
        return SchedulerStatistics(
            running=len(self._roster.running),
            waiting=len(self._roster.waiting),
            blocks=self._pool.statistics(),
            fragmentation=self._pool.fragmentation(self._roster.running.values()),
            steps=totals.steps,
            rollbacks=totals.rollbacks,
            planned_items=totals.planned_items,
            tokens=totals.tokens,
            prompt_tokens=totals.prompt_tokens,
            cached_prompt_tokens=totals.cached_prompt_tokens,
            computed_tokens=totals.computed_tokens,
            preemptions=totals.preemptions,
            swaps=totals.swaps,
            starvations=totals.starvations,
            drafted=totals.drafted,
            accepted=totals.accepted,
        )

    def check_integrity(self) -> None:
        """Assert that all sums and indexes agree; for tests and idle moments."""
        if self._open is None:
            self._roster.check_integrity()
        self._pool.check_integrity(self._roster.sequences())
        self._fair_share.check_integrity(len(self._roster))
        assert len(self._roster.running) <= self._config.max_batch_size

    def _builder_of(self, plan: StepPlan) -> StepBuilder:
        if self._open is None or self._open[0] is not plan:
            raise ValueError(f"step {plan.step} is not the open one")
        return self._open[1]

    def _start(self, item: PlannedItem, now: float) -> None:
        """It was let in by the step that just ran."""
        sequence = item.sequence
        self._roster.start(sequence)
        sequence.num_swapped = 0
        sequence.num_expected_hits = 0
        if sequence.admitted_at is None:
            self._note_wait(sequence, now)
            sequence.admitted_at = now
            sequence.num_cached = item.start
            self._totals.prompt_tokens += sequence.num_prompt
            self._totals.cached_prompt_tokens += sequence.num_cached

    def _take_in(self, item: PlannedItem, tokens: list[int], before: int) -> None:
        sequence = item.sequence
        num_run = len(item.token_ids)
        num_accepted = max(0, len(tokens) - 1)
        sequence.num_computed = item.start + num_run - item.num_drafts + num_accepted
        sequence.output_ids.extend(tokens)
        sequence.drafts.clear()
        self._pool.publish(sequence, before)
        self._fair_share.charge(sequence.tenant, num_run - item.num_drafts, sequence.weight)
        self._roster.running.move_to_end(sequence.key)
        self._totals.tokens += len(tokens)
        self._totals.computed_tokens += num_run
        self._totals.drafted += item.num_drafts
        self._totals.accepted += num_accepted

    def _remove(self, sequence: Sequence, event: SequenceEvent) -> None:
        self._admission.note_ended(sequence)
        self._roster.remove(sequence, event)
        self._fair_share.leave(sequence.tenant)

    def _note_wait(self, sequence: Sequence, now: float) -> None:
        """Count, once, a request that has waited beyond its bound for its first start."""
        is_waiting = sequence.admitted_at is None and not sequence.is_starved
        if is_waiting and self._order.is_overdue(sequence, now):
            sequence.is_starved = True
            self._totals.starvations += 1

    def _due(self, sequence: Sequence) -> float:
        """When ``expire`` has to look at it next."""
        due = math.inf if sequence.deadline is None else sequence.deadline
        if sequence.admitted_at is None and not sequence.is_starved:
            due = min(due, sequence.arrived_at + self._order.bound_s(sequence.rank))
        return due


def _check_tokens(item: PlannedItem, tokens: list[int]) -> None:
    sequence = item.sequence
    if sequence.state is SequenceState.ABORTING:
        return
    fewest, most = (1, item.num_drafts + 1) if item.samples else (0, 0)
    if not fewest <= len(tokens) <= most:
        raise ValueError(f"sequence {sequence.key}: {len(tokens)} tokens, not {fewest} to {most}")
