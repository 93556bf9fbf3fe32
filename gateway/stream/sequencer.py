"""Puts answers back into the order of their questions."""

from __future__ import annotations

from collections import OrderedDict
from typing import Generic, TypeVar

T = TypeVar("T")


class Sequencer(Generic[T]):
    """Releases results in strictly rising ``seq``; what is not a result vacates its slot at once.

    A slot is reserved at admission, before anything can answer the frame: a sequencer that learns
    of a frame when it completes cannot know what it has to wait for. Every reserved slot is either
    completed or vacated, so nothing waits longer than the oldest unanswered frame does, and the
    engine bounds that. At most ``capacity`` slots are taken; credit keeps admission below it.

    There is no clock here but ``max_gap``: once more than so many results are held, the frame that
    they wait for is ``overdue``, and the caller is to vacate its slot. None: they wait, as they
    must where nothing may be lost.
    """

    def __init__(self, capacity: int, *, max_gap: int | None = None) -> None:
        if capacity < 1:
            raise ValueError(f"capacity must be >= 1, got {capacity}")
        if max_gap is not None and max_gap < 1:
            raise ValueError(f"max_gap must be >= 1, got {max_gap}")
        self._capacity = capacity
        self._max_gap = max_gap
        self._num_held = 0
        self._last_seq = -1
        # Oldest first; None while the answer is awaited. Slots leave from the middle as well:
        # behind one slow frame, hundreds of superseded ones may come and go.
        self._slots: OrderedDict[int, T | None] = OrderedDict()

    def __len__(self) -> int:
        """Slots taken: answers awaited and results held."""
        return len(self._slots)

    @property
    def is_full(self) -> bool:
        return len(self._slots) >= self._capacity

    @property
    def held(self) -> tuple[int, ...]:
        """Frames whose result waits for an earlier one, in order."""
        return tuple(seq for seq, result in self._slots.items() if result is not None)

    @property
    def overdue(self) -> int | None:
        """The unanswered frame that too many results wait for; None while the gap is tolerable."""
        if self._max_gap is None or self._num_held <= self._max_gap:
            return None
        return next(iter(self._slots))  # what is held waits for the oldest slot, or it had left

    def reserve(self, seq: int) -> None:
        """Take the next slot.

        Raises:
            ValueError: ``seq`` does not rise, or every slot is taken; nothing has changed.
        """
        if seq <= self._last_seq:
            raise ValueError(f"seq {seq} does not rise above {self._last_seq}")
        if self.is_full:
            raise ValueError(f"all {self._capacity} slots are taken")
        self._last_seq = seq
        self._slots[seq] = None

    def complete(self, seq: int, result: T) -> list[tuple[int, T]]:
        """Fill the slot; returns what may leave now, in rising order.

        Raises:
            ValueError: the slot is not reserved, or has its result already.
        """
        if self._slots.get(seq, result) is not None:
            raise ValueError(f"seq {seq} awaits no result")
        self._slots[seq] = result
        self._num_held += 1
        return self._release()

    def vacate(self, seq: int) -> list[tuple[int, T]]:
        """Give the slot up, held result included; returns what may leave now, in rising order.

        Raises:
            ValueError: the slot is not reserved.
        """
        if seq not in self._slots:
            raise ValueError(f"seq {seq} has no slot")
        if self._slots.pop(seq) is not None:
            self._num_held -= 1
        return self._release()

    def check_integrity(self) -> None:
        """Assert the sums; tests call it after every step."""
        assert self._num_held == len(self.held)
        assert len(self._slots) <= self._capacity

    def _release(self) -> list[tuple[int, T]]:
        released: list[tuple[int, T]] = []
        while self._slots:
            seq = next(iter(self._slots))
            result = self._slots[seq]
            if result is None:
                break
            del self._slots[seq]
            self._num_held -= 1
            released.append((seq, result))
        return released
