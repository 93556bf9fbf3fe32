"""Plans one step: decodes first, then prefill chunks in what is left of the step's time."""

from __future__ import annotations

from engine.llm.blocks import BlockPool
from engine.llm.scheduling.admission import Admission
from engine.llm.scheduling.order import PrefillOrder
from engine.llm.scheduling.plan import SchedulerConfig, SwapMove
from engine.llm.scheduling.preemption import Preemption
from engine.llm.scheduling.prefill import PrefillPlanner
from engine.llm.scheduling.roster import Roster
from engine.llm.scheduling.step_builder import StepBuilder
from engine.llm.sequence import Sequence
from engine.llm.step_cost import StepCost, StepShape

# A reader that holds so much unread text needs no more of it now; what a step in flight adds on top
# stays within the 0.6 s that the gateway's pacer holds at most.
MAX_LEAD_S = 0.5


class Planner:
    """Preempts at once (that is a decision, not a reservation); everything else stays a
    reservation in the builder that it returns."""

    def __init__(
        self,
        config: SchedulerConfig,
        pool: BlockPool,
        cost: StepCost,
        roster: Roster,
        order: PrefillOrder,
        admission: Admission,
    ) -> None:
        self._config = config
        self._pool = pool
        self._cost = cost
        self._roster = roster
        self._order = order
        self._admission = admission
        self._preemption = Preemption(config, pool, cost, admission)
        self._prefill = PrefillPlanner(config, pool, cost, roster, order, admission)

    def plan(self, now: float, max_rows: int) -> StepBuilder:
        """A step of at most ``max_rows`` token rows; it may be empty."""
        builder = StepBuilder(self._pool, now)
        decodes = self._choose_decodes(now, max_rows)
        self._make_room_to_grow(builder, decodes)
        self._make_room_for_urgent(builder, now)
        decodes = [sequence for sequence in decodes if sequence not in builder.preempted]
        for sequence in decodes:
            builder.add_decode(sequence)
        self._add_drafts(builder, decodes, max_rows)
        self._prefill.fill(builder, now, max_rows)
        return builder

    def _choose_decodes(self, now: float, max_rows: int) -> list[Sequence]:
        """All that decode, but for those whose readers are ``MAX_LEAD_S`` behind already.

        Where they do not fit the step's time, the readers with the most unsent text go without;
        nobody does who would then have less than one step's.
        """
        decodes = []
        for sequence in self._roster.running.values():
            sequence.update_laxity(now)
            if sequence.num_to_compute == 1 and sequence.laxity_s <= MAX_LEAD_S:
                decodes.append(sequence)
        decodes = decodes[:max_rows]
        for laxest in sorted(decodes, key=lambda sequence: sequence.laxity_s, reverse=True):
            step_ms = self._least_step_ms(StepShape.of_decodes(decodes), len(decodes))
            is_short = step_ms > self._config.decode_step_ms
            if not is_short or len(decodes) == 1 or laxest.laxity_s * 1000 <= 2 * step_ms:
                break
            decodes.remove(laxest)
        return decodes

    def _least_step_ms(self, shape: StepShape, num_decoding: int) -> float:
        """With the least chunk: it goes along if anybody else is there."""
        chunk = self._config.min_chunk_tokens if len(self._roster) > num_decoding else 0
        return self._cost.predict(shape.with_chunk(0, chunk))

    def _make_room_to_grow(self, builder: StepBuilder, decodes: list[Sequence]) -> None:
        """Memory has run out: preempt until those who are left have a block for their next token.

        It always suffices: the protected have all their blocks, and the last one that is not
        fits alone, or gives way to them.
        """
        if self._lacking_blocks(decodes) <= 0:
            return
        for victim in self._preemption.candidates(self._roster.running.values()):
            self._preempt(builder, victim)
            decodes[:] = [sequence for sequence in decodes if sequence is not victim]
            if self._lacking_blocks(decodes) <= 0:
                return

    def _lacking_blocks(self, decodes: list[Sequence]) -> int:
        needed = sum(self._pool.missing_blocks(s, s.num_tokens) for s in decodes)
        return needed - self._pool.num_available

    def _make_room_for_urgent(self, builder: StepBuilder, now: float) -> None:
        """Preempt for the most urgent waiting request. One request per step: that bounds the
        upheaval, and its prompt fills the step anyway."""
        running = list(self._roster.running.values())
        lowest = max((sequence.rank for sequence in running), default=0)
        # Nobody who has just given way: it would find no lower class that can.
        urgent = [s for s in self._roster.waiting.values() if s.rank < lowest]
        if not urgent:
            return
        first = self._order.sort(urgent, now)[0]
        needs_slot = not self._admission.has_slot(first, running)
        for victim in self._preemption.victims_for(first, running, needs_slot=needs_slot, now=now):
            self._preemption.note_taken(victim, now)
            self._preempt(builder, victim)
            builder.favoured = first

    def _preempt(self, builder: StepBuilder, victim: Sequence) -> None:
        in_host = sum(self._pool.blocks_for(s.num_swapped) for s in self._roster.waiting.values())
        if self._preemption.should_swap(victim, in_host):
            num_blocks = self._pool.blocks_for(victim.num_computed)
            builder.swap_out.append(SwapMove(victim.key, tuple(victim.blocks[:num_blocks])))
            victim.num_swapped = victim.num_computed
        self._roster.preempt(victim)
        builder.preempted.append(victim)

    def _add_drafts(self, builder: StepBuilder, decodes: list[Sequence], max_rows: int) -> None:
        """Verify guesses while the batch leaves the machine's arithmetic idle."""
        if len(decodes) > self._config.speculative_max_batch:
            return
        for sequence in decodes:
            # The model adds a token of its own to the accepted ones.
            drafts = tuple(sequence.drafts[: sequence.num_left - 1])
            shape = builder.shape.with_decode(sequence.num_tokens, len(drafts))
            step_ms = self._least_step_ms(shape, len(decodes))
            is_within = step_ms <= self._config.decode_step_ms
            if drafts and is_within and shape.num_decodes <= max_rows:
                builder.add_drafts(sequence, drafts)
