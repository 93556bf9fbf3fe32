"""Who may start: a slot, blocks for all its tokens, and room for those that run to grow."""

from __future__ import annotations

from collections.abc import Collection, Iterable
from dataclasses import dataclass

from engine.llm.blocks import BlockPool
from engine.llm.scheduling.plan import NeverFits, SchedulerConfig
from engine.llm.sequence import Sequence
from engine.llm.step_cost import StepCost, StepShape

_MAX_PASSED = 16  # how many without room are looked at in one step
_KEEP = 0.95  # of what earlier answers have shown: about the last twenty count


@dataclass(frozen=True, slots=True)
class Place:
    """What a sequence takes when it starts: blocks to share, and slots in all."""

    prefix: list[int]
    num_slots: int


class Admission:
    """Decides whether a sequence can start now; changes nothing.

    A prompt's blocks are reserved whole when it starts, so that two half-computed prompts can
    never wait for each other's blocks; its output takes blocks on demand. One block is kept back
    for every running sequence that may still grow. A sequence that was preempted
    ``max_preemptions`` times is *protected*: it starts only with its whole future reserved and
    need never give way again.
    """

    def __init__(self, config: SchedulerConfig, pool: BlockPool, cost: StepCost) -> None:
        self._config = config
        self._pool = pool
        self._cost = cost
        self._prefill_ms = 0.0  # of answers that are over, and their tokens
        self._num_outputs = 0.0

    def note_ended(self, sequence: Sequence) -> None:
        """It has run, and is over: what its prompt cost, and how many tokens came of that."""
        if not sequence.output_ids:
            return
        num_computed = sequence.num_prompt - sequence.num_cached
        prefill = StepShape().with_chunk(sequence.num_cached, num_computed)
        prefill_ms = self._cost.predict(prefill) - self._cost.predict(StepShape())
        self._prefill_ms = _KEEP * self._prefill_ms + prefill_ms
        self._num_outputs = _KEEP * self._num_outputs + len(sequence.output_ids)

    def limit_tokens(self, sequence: Sequence) -> int:
        """``max_tokens``, or as many as fit if it is None.

        Raises:
            NeverFits: prompt and answer exceed the cache or ``max_seq_length``.
        """
        # The last token of an answer is never computed, so it needs no slot.
        num_slots = self._pool.num_blocks * self._pool.block_size
        longest = min(self._config.max_seq_length, num_slots + 1)
        room = longest - sequence.num_prompt
        wanted = room if sequence.max_tokens is None else sequence.max_tokens
        if room < 1 or wanted > room:
            raise NeverFits(
                f"{sequence.num_prompt} prompt tokens and {max(1, wanted)} of output exceed the "
                f"{longest} that fit"
            )
        return wanted

    def is_protected(self, sequence: Sequence) -> bool:
        return sequence.num_preemptions >= self._config.max_preemptions

    def headroom(self, running: Iterable[Sequence]) -> int:
        """Blocks kept back so that nobody is preempted a moment after someone else started."""
        return sum(self._pool.missing_blocks(s, s.max_slots) > 0 for s in running)

    def has_slot(self, sequence: Sequence, running: Collection[Sequence]) -> bool:
        """Whether one more may run without taking the others below ``min_rate``.

        Beside its decodes a step has its share of the prompts of those who take the places of
        answers that end: with N running, N times what an answer's token has cost in prefill.
        """
        if len(running) >= self._config.max_batch_size:
            return False
        if not running or self._config.min_rate <= 0.0:
            return True
        decode_ms = self._cost.predict(StepShape.of_decodes([*running, sequence]))
        prefill_ms = (len(running) + 1) * self._prefill_ms / max(1.0, self._num_outputs)
        return decode_ms + prefill_ms <= 1000.0 / self._config.min_rate

    def place_of(self, sequence: Sequence) -> Place:
        prefix = self._pool.match_prefix(sequence) if sequence.num_swapped == 0 else []
        protected = self.is_protected(sequence)
        return Place(prefix, sequence.max_slots if protected else sequence.num_tokens)

    def missing_blocks(self, place: Place, headroom: int) -> int:
        """How many blocks would have to become available first; negative when some are left."""
        fresh = self._pool.blocks_for(place.num_slots) - len(place.prefix)
        taken = fresh + self._pool.num_unowned(place.prefix)
        return taken + headroom - self._pool.num_available


class Entrance:
    """The admissions of one step.

    Whoever has no room is passed over by smaller ones, until its ageing bound is over: then the
    doors close for everybody behind it, and what finishes makes room for it.
    """

    def __init__(self, admission: Admission, running: Iterable[Sequence]) -> None:
        self._admission = admission
        self._running = list(running)
        self._headroom = admission.headroom(self._running)
        self._num_passed = 0
        self._is_closed = False

    def find_place(self, sequence: Sequence, *, is_overdue: bool) -> Place | None:
        """None when it cannot start in this step."""
        if self._is_closed or not self._admission.has_slot(sequence, self._running):
            return None
        place = self._admission.place_of(sequence)
        if self._admission.missing_blocks(place, self._headroom) <= 0:
            return place
        self._num_passed += 1
        self._is_closed = is_overdue or self._num_passed >= _MAX_PASSED
        return None

    def note_started(self, sequence: Sequence) -> None:
        self._running.append(sequence)
        self._headroom += self._admission.headroom([sequence])
