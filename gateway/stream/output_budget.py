"""What all connections of the process together may hold for their readers."""

from __future__ import annotations

import sys
from typing import Protocol

from gateway.stream.byte_budget import ByteMeter


class Holder(Protocol):
    """An outbox, as the budget sees it."""

    @property
    def size_bytes(self) -> int: ...

    def relieve(self) -> None:
        """Hold fewer bytes from now on, or leave the budget."""


class OutputBudget:
    """Over ``max_bytes`` in all, the connection that holds most makes room, then the next.

    A connection's own bound is what a healthy reader's bursts need; many slow readers at once would
    still fill the memory with it. Those who read pay nothing: what they hold is little.
    """

    def __init__(self, max_bytes: int = sys.maxsize) -> None:
        self.meter = ByteMeter()
        self.num_relieved = 0  # how often somebody had to make room
        self._max_bytes = max_bytes
        self._holders: set[Holder] = set()
        self._is_making_room = False

    @property
    def is_over(self) -> bool:
        return self.meter.used > self._max_bytes

    def join(self, holder: Holder) -> None:
        self._holders.add(holder)

    def leave(self, holder: Holder) -> None:
        """Idempotent."""
        self._holders.discard(holder)

    def make_room(self) -> None:
        """Until what is held is within bounds; what is put meanwhile is dealt with as well."""
        if self._is_making_room:
            return
        self._is_making_room = True
        try:
            while self.is_over and self._holders:
                self.num_relieved += 1
                max(self._holders, key=lambda holder: holder.size_bytes).relieve()
        finally:
            self._is_making_room = False
