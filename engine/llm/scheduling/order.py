"""Who gets the next prefill chunk or the next free place.

The order is lexicographic: class, then the tenant's fair share, then who has waited beyond its
bound without a start, then response ratio. A sum of those terms would not keep the ageing bound:
under overload the urgent class ages as fast as the others do. So age earns a turn of its own, and
never changes a class.

Response ratio is wait / work, as in highest-response-ratio-next (Brinch Hansen 1971): a short
prompt soon overtakes a long one, and everybody's wait stays in proportion to what they ask. Work
is what is left to compute, without what the prefix cache is expected to hold.
"""

from __future__ import annotations

from collections.abc import Iterable

from engine.llm.scheduling.fair_share import FairShare
from engine.llm.sequence import Sequence, SequenceState

_NUM_RANKS = 3
# An aged request takes the next free place from here on, so that it starts within the bound.
_AGED_AFTER = 1 / 2
# Others that are served between two turns: a flood of aged work cannot turn the classes over.
_OTHERS_PER_TURN = 3
_LEAST_WORK = 32  # tokens; below, the work makes no difference


class PrefillOrder:
    """Orders what has tokens to compute. Changes only by ``note_served``, at commit."""

    def __init__(self, fair_share: FairShare, max_wait_s: float) -> None:
        self._fair_share = fair_share
        self._max_wait_s = max_wait_s
        self._num_since_turn = _OTHERS_PER_TURN

    def bound_s(self, rank: int) -> float:
        """Ageing bound of a class: ``max_wait_s`` for the lowest, in proportion above."""
        return self._max_wait_s * min(rank + 1, _NUM_RANKS) / _NUM_RANKS

    def is_overdue(self, sequence: Sequence, now: float) -> bool:
        return now - sequence.arrived_at >= self.bound_s(sequence.rank)

    def sort(self, sequences: Iterable[Sequence], now: float) -> list[Sequence]:
        """Most urgent first."""
        return sorted(sequences, key=lambda sequence: self._key(sequence, now))

    def turn_of(self, ordered: list[Sequence], now: float) -> Sequence | None:
        """Who of ``ordered`` goes first all the same, because of its age.

        A lower class that waits to start, then one that was preempted, or else a prompt that has
        started and is overtaken: where even equals ask for more than there is, it would make no
        progress otherwise.
        """
        if self._num_since_turn < _OTHERS_PER_TURN:
            return None
        aged = [s for s in ordered if self._is_aged(s, now) and self._is_behind(s, ordered[0])]
        return min(aged, key=_turn_key, default=None)

    def note_served(self, *, in_turn: bool) -> None:
        """Somebody computed a part of its prompt; ``in_turn`` if it owes that to ``turn_of``."""
        self._num_since_turn = 0 if in_turn else self._num_since_turn + 1

    def _key(self, sequence: Sequence, now: float) -> tuple[float, ...]:
        """Smaller is more urgent."""
        if not _has_started(sequence) and self.is_overdue(sequence, now):
            within_tenant = (0.0, sequence.arrived_at)
        else:
            work = max(_LEAST_WORK, sequence.num_to_compute - sequence.num_expected_hits)
            within_tenant = (1.0, (sequence.arrived_at - now) / work)
        used = self._fair_share.virtual_time(sequence.tenant)
        return (sequence.rank, used, *within_tenant, sequence.arrived_at, sequence.key)

    def _is_aged(self, sequence: Sequence, now: float) -> bool:
        return now - sequence.arrived_at >= _AGED_AFTER * self.bound_s(sequence.rank)

    def _is_behind(self, sequence: Sequence, first: Sequence) -> bool:
        return sequence.rank > first.rank or (_has_started(sequence) and sequence is not first)


def _turn_key(sequence: Sequence) -> tuple[bool, bool, float]:
    """The bound is on the first start: whoever gave way since would else start again before it."""
    return _has_started(sequence), sequence.admitted_at is not None, sequence.arrived_at


def _has_started(sequence: Sequence) -> bool:
    return sequence.state is SequenceState.RUNNING
