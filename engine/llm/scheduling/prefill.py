"""Fills the rest of a step with prefill chunks, and lets newcomers in."""

from __future__ import annotations

from engine.llm.blocks import BlockPool
from engine.llm.scheduling.admission import Admission, Entrance, Place
from engine.llm.scheduling.order import PrefillOrder
from engine.llm.scheduling.plan import SchedulerConfig
from engine.llm.scheduling.roster import Roster
from engine.llm.scheduling.step_builder import StepBuilder
from engine.llm.sequence import Sequence, SequenceState
from engine.llm.step_cost import StepCost


class PrefillPlanner:
    """Gives the step's remaining time to prompts, in order; a sequence starts with its first
    chunk. The first in order gets at least ``min_chunk_tokens`` whatever that costs, so that no
    prompt starves behind decodes."""

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

    def fill(self, builder: StepBuilder, now: float, max_rows: int) -> None:
        running = self._roster.running.values()
        # Also one that is left out of this step must not wait for a long one.
        is_decoding = any(sequence.num_to_compute == 1 for sequence in running)
        budget_ms = self._config.decode_step_ms if is_decoding else self._config.idle_step_ms
        rows_left = min(self._config.max_chunk_tokens, max_rows - builder.shape.num_decodes)
        entrance = Entrance(self._admission, running)
        for sequence in self._candidates(builder, now):
            if rows_left <= 0:
                return
            place: Place | None = None
            if sequence.state is not SequenceState.RUNNING:
                is_overdue = self._order.is_overdue(sequence, now)
                place = entrance.find_place(sequence, is_overdue=is_overdue)
                if place is None:
                    continue
            num_tokens = self._chunk(builder, sequence, place, rows_left, budget_ms)
            if num_tokens == 0:
                return
            if place is not None:
                builder.admit(sequence, place)
                entrance.note_started(sequence)
            builder.add_chunk(sequence, num_tokens)
            rows_left -= num_tokens

    def _candidates(self, builder: StepBuilder, now: float) -> list[Sequence]:
        """Most urgent first."""
        running = self._roster.running.values()
        candidates = [sequence for sequence in running if sequence.num_to_compute > 1]
        if len(running) < self._config.max_batch_size:
            waiting = self._roster.waiting.values()
            # Who has just given way would otherwise take its own place back.
            candidates += [sequence for sequence in waiting if sequence not in builder.preempted]
        ordered = self._order.sort(candidates, now)
        builder.in_turn = self._order.turn_of(ordered, now)
        for first in (builder.in_turn, builder.favoured):
            if first is not None:
                ordered.remove(first)
                ordered.insert(0, first)
        return ordered

    def _chunk(
        self,
        builder: StepBuilder,
        sequence: Sequence,
        place: Place | None,
        rows_left: int,
        budget_ms: float,
    ) -> int:
        """How many tokens of the sequence go along."""
        start = sequence.num_computed
        if place is not None:
            start = sequence.num_swapped or len(place.prefix) * self._pool.block_size
        limit = min(sequence.num_tokens - start, rows_left)
        chunk = self._cost.affordable_chunk(
            builder.shape, start=start, limit=limit, budget_ms=budget_ms
        )
        least = 0 if builder.prefills else min(self._config.min_chunk_tokens, limit)
        chunk = max(chunk, least)
        return chunk if chunk == limit else self._whole_blocks(start, chunk, least)

    def _whole_blocks(self, start: int, chunk: int, least: int) -> int:
        """A chunk that is not the last ends with a block, if ``least`` tokens still go along.

        The model attends in windows of whole blocks: a small chunk that reaches into a second one
        takes up to twice as long.
        """
        end = (start + chunk) // self._pool.block_size * self._pool.block_size
        return end - start if end - start >= max(1, least) else chunk
