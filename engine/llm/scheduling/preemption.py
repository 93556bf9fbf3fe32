"""Who gives way, how often, and what becomes of what it had computed."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable

from engine.llm.blocks import BlockPool
from engine.llm.scheduling.admission import Admission
from engine.llm.scheduling.plan import SchedulerConfig
from engine.llm.sequence import Sequence
from engine.llm.step_cost import StepCost, StepShape


class Preemption:
    """Chooses victims; the scheduler carries it out.

    The lowest class gives way first, then the largest laxity (a stream with unsent text does not
    feel it), then who came last. Where memory has run out, as many give way as it takes. Where
    only a more urgent request is waiting, at most ``preempt_ratio`` of the slots and of the
    blocks change hands per ``scheduler_interval``, and only a lower class gives way: age earns
    the next free place, never somebody's running one, or classes would turn over under load.
    """

    def __init__(
        self, config: SchedulerConfig, pool: BlockPool, cost: StepCost, admission: Admission
    ) -> None:
        self._config = config
        self._pool = pool
        self._cost = cost
        self._admission = admission
        self._recent: deque[tuple[float, int]] = deque()  # (when, blocks); one interval's

    def candidates(self, running: Iterable[Sequence]) -> list[Sequence]:
        """Who may be preempted, first victim first."""
        unprotected = (s for s in running if not self._admission.is_protected(s))
        return sorted(
            unprotected, key=lambda s: (s.rank, s.laxity_s, s.arrived_at, s.key), reverse=True
        )

    def victims_for(
        self, sequence: Sequence, running: Iterable[Sequence], *, needs_slot: bool, now: float
    ) -> list[Sequence]:
        """Who gives way so that ``sequence`` can start; empty when it cannot be enough."""
        running = list(running)
        place = self._admission.place_of(sequence)
        missing_blocks = self._admission.missing_blocks(place, self._admission.headroom(running))
        missing_slots = int(needs_slot)
        slots_left, blocks_left = self._allowance(now)
        victims: list[Sequence] = []
        for victim in self.candidates(running):
            if missing_slots <= 0 and missing_blocks <= 0:
                break
            num_freed = self._pool.num_exclusive(victim)
            is_allowed = slots_left > 0 and num_freed <= blocks_left
            if victim.rank <= sequence.rank or not (is_allowed or self._is_first(victims)):
                return []
            victims.append(victim)
            missing_slots -= 1
            missing_blocks -= num_freed
            slots_left -= 1
            blocks_left -= num_freed
        return victims if missing_slots <= 0 and missing_blocks <= 0 else []

    def note_taken(self, victim: Sequence, now: float) -> None:
        """It gave way to a more urgent request; counts against the interval's allowance."""
        self._recent.append((now, self._pool.num_exclusive(victim)))

    def should_swap(self, victim: Sequence, num_swapped_blocks: int) -> bool:
        """Whether two copies cost less than computing it again, and host memory has room."""
        num_blocks = self._pool.blocks_for(victim.num_computed)
        if num_blocks + num_swapped_blocks > self._config.max_swapped_blocks:
            return False
        empty = StepShape()
        again = empty.with_chunk(0, victim.num_computed)
        recompute_ms = self._cost.predict(again) - self._cost.predict(empty)
        return 2 * num_blocks * self._config.swap_ms_per_block < recompute_ms

    def _is_first(self, victims: list[Sequence]) -> bool:
        """One may always give way per interval, or somebody large never would."""
        return not victims and not self._recent and self._config.preempt_ratio > 0.0

    def _allowance(self, now: float) -> tuple[int, int]:
        """Slots and blocks that may still change hands in this interval."""
        while self._recent and now - self._recent[0][0] >= self._config.scheduler_interval / 1000:
            self._recent.popleft()
        ratio = self._config.preempt_ratio
        slots = int(ratio * self._config.max_batch_size) - len(self._recent)
        blocks = int(ratio * self._pool.num_blocks) - sum(taken for _, taken in self._recent)
        return slots, blocks
