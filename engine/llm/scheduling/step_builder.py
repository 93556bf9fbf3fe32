"""Puts one step together: reserves its blocks, and can give them back."""

from __future__ import annotations

from dataclasses import dataclass

from engine.llm.blocks import BlockPool
from engine.llm.scheduling.admission import Place
from engine.llm.scheduling.plan import PlannedItem, StepPlan, SwapMove
from engine.llm.sequence import Sequence
from engine.llm.step_cost import StepShape


@dataclass(frozen=True, slots=True)
class Reservation:
    """What a planned sequence had before the step."""

    num_blocks: int
    num_computed: int


class StepBuilder:
    """Adds sequences to a step. Until the commit only block tables and ``num_computed`` change,
    and ``undo`` restores them.

    What was evicted from the prefix cache meanwhile stays evicted: the step may have failed after
    it wrote into those blocks.
    """

    def __init__(self, pool: BlockPool, now: float) -> None:
        self._pool = pool
        self.planned_at = now
        self.items: dict[int, PlannedItem] = {}
        self.shape = StepShape()
        self.reservations: dict[int, Reservation] = {}
        self.prefills: list[Sequence] = []
        self.preempted: list[Sequence] = []
        self.favoured: Sequence | None = None  # others gave way to it
        self.in_turn: Sequence | None = None  # goes first because of its age
        self.swap_out: list[SwapMove] = []
        self.swap_in: list[SwapMove] = []

    def add_decode(self, sequence: Sequence) -> None:
        """Plan the one token that is left to compute; a block for it is available."""
        self._note(sequence)
        has_grown = self._pool.try_grow(sequence, sequence.num_tokens)
        assert has_grown, "room to grow was made first"
        self._plan(sequence, 1)
        self.shape = self.shape.with_decode(sequence.num_tokens)

    def add_drafts(self, sequence: Sequence, drafts: tuple[int, ...]) -> bool:
        """Verify ``drafts`` behind the planned token; False when blocks are lacking."""
        if not self._pool.try_grow(sequence, sequence.num_tokens + len(drafts)):
            return False
        self._plan(sequence, 1, drafts)
        self.shape = self.shape.with_decode(sequence.num_tokens, len(drafts))
        return True

    def admit(self, sequence: Sequence, place: Place) -> None:
        """Reserve ``place``, which is available, for a sequence that holds nothing.

        What the cache or host memory still has of it counts as computed.
        """
        self._note(sequence)
        self._pool.adopt_prefix(sequence, place.prefix)
        has_grown = self._pool.try_grow(sequence, place.num_slots)
        assert has_grown, "admission has checked that there is room"
        if sequence.num_swapped > 0:
            sequence.num_computed = sequence.num_swapped
            num_blocks = self._pool.blocks_for(sequence.num_swapped)
            self.swap_in.append(SwapMove(sequence.key, tuple(sequence.blocks[:num_blocks])))

    def add_chunk(self, sequence: Sequence, num_tokens: int) -> None:
        """Plan the next ``num_tokens`` tokens; the table covers them since admission."""
        self._note(sequence)
        self.prefills.append(sequence)
        self.shape = self.shape.with_chunk(sequence.num_computed, num_tokens)
        self._plan(sequence, num_tokens)

    def build(self, step: int) -> StepPlan:
        return StepPlan(
            step=step,
            planned_at=self.planned_at,
            items=tuple(self.items.values()),
            swap_out=tuple(self.swap_out),
            swap_in=tuple(self.swap_in),
            shape=self.shape,
        )

    def undo(self) -> None:
        """Give back what this step reserved, the last first."""
        for key, before in reversed(self.reservations.items()):
            sequence = self.items[key].sequence
            self._pool.truncate(sequence, before.num_blocks)
            sequence.num_computed = before.num_computed
        for sequence in self.preempted:
            sequence.num_swapped = 0  # nobody knows whether it was copied

    def _note(self, sequence: Sequence) -> None:
        before = Reservation(len(sequence.blocks), sequence.num_computed)
        self.reservations.setdefault(sequence.key, before)

    def _plan(self, sequence: Sequence, num_tokens: int, drafts: tuple[int, ...] = ()) -> None:
        start = sequence.num_computed
        self.items[sequence.key] = PlannedItem(
            sequence=sequence,
            start=start,
            token_ids=(*sequence.tokens(start, start + num_tokens), *drafts),
            num_drafts=len(drafts),
            samples=num_tokens == sequence.num_to_compute,
        )
