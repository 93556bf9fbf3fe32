"""Every live sequence, by where it stands."""

from __future__ import annotations

from collections import OrderedDict

from engine.llm.blocks import BlockPool
from engine.llm.sequence import Sequence, SequenceEvent, SequenceState


class Roster:
    """``waiting`` in order of arrival here; ``running`` with the least recently served first."""

    def __init__(self, pool: BlockPool) -> None:
        self._pool = pool
        self.waiting: dict[int, Sequence] = {}
        self.running: OrderedDict[int, Sequence] = OrderedDict()

    def __len__(self) -> int:
        return len(self.waiting) + len(self.running)

    def __contains__(self, key: int) -> bool:
        return key in self.waiting or key in self.running

    def get(self, key: int) -> Sequence | None:
        return self.waiting.get(key) or self.running.get(key)

    def sequences(self) -> list[Sequence]:
        return [*self.waiting.values(), *self.running.values()]

    def add(self, sequence: Sequence) -> None:
        self.waiting[sequence.key] = sequence

    def start(self, sequence: Sequence) -> None:
        sequence.apply(SequenceEvent.ADMIT)
        self.running[sequence.key] = self.waiting.pop(sequence.key)

    def preempt(self, sequence: Sequence) -> None:
        """Slot and blocks are free at once; the tokens and the time of arrival stay."""
        sequence.apply(SequenceEvent.PREEMPT)
        sequence.num_preemptions += 1
        sequence.drafts.clear()
        self._pool.release(sequence)
        self.waiting[sequence.key] = self.running.pop(sequence.key)

    def remove(self, sequence: Sequence, event: SequenceEvent) -> None:
        sequence.apply(event)
        self._pool.release(sequence)
        self.waiting.pop(sequence.key, None)
        self.running.pop(sequence.key, None)

    def check_integrity(self) -> None:
        """Assert that states and places agree; for tests, between steps."""
        assert not self.waiting.keys() & self.running.keys()
        for sequence in self.waiting.values():
            assert sequence.state in (SequenceState.WAITING, SequenceState.PREEMPTED)
            assert not sequence.blocks
            assert sequence.num_computed == 0
        for sequence in self.running.values():
            assert sequence.state is SequenceState.RUNNING
            assert len(sequence.blocks) >= self._pool.blocks_for(sequence.num_computed)
            assert sequence.num_computed < sequence.num_tokens
