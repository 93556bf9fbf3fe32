"""Tells engines how far the readers of their answers are."""

from __future__ import annotations

from collections import deque
from typing import Protocol

from gateway.session.clock import Clock, Timer

# What leaves is told as it leaves, for then all about the answer is in the processor's cache; not
# again so soon, a little under the period at which engines pass it on.
TOLD_EVERY_S = 0.04
# The engine forgets a record after a second, and takes a reader of whom it hears nothing for one
# that waits: a stalled one has to be told again and again.
REFRESH_S = 0.4
READERS_PER_TURN = 64  # about half a millisecond; the loop has others to serve


class Reader(Protocol):
    """One answer on its way out."""

    def refresh_release(self, now: float) -> None:
        """Tell the engine, unless it was told lately, how many of its tokens have left, and how
        fast more are going to (0.0: a reader that takes nothing)."""


class ReleaseTable:
    """Holds the answers that are running, which their callers bound; ticks every ``REFRESH_S``
    while there are any, for those of whom the engine would hear nothing."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._readers: dict[Reader, None] = {}  # in the order in which they came
        self._timer: Timer | None = None
        self._due_at = 0.0  # of the next tick
        self._rest: deque[Reader] = deque()  # of this tick

    def __len__(self) -> int:
        return len(self._readers)

    def add(self, reader: Reader) -> None:
        self._readers[reader] = None
        if self._timer is None:
            self._due_at = self._clock.now() + REFRESH_S
            self._timer = self._clock.call_at(self._due_at, self._begin_tick)

    def remove(self, reader: Reader) -> None:
        """Idempotent."""
        self._readers.pop(reader, None)

    def _begin_tick(self) -> None:
        self._due_at = max(self._due_at + REFRESH_S, self._clock.now())
        self._rest.extend(self._readers)
        self._tell_some()

    def _tell_some(self) -> None:
        now = self._clock.now()
        for _ in range(min(READERS_PER_TURN, len(self._rest))):
            reader = self._rest.popleft()
            if reader in self._readers:
                reader.refresh_release(now)
        self._timer = None
        if self._rest:
            self._timer = self._clock.call_at(now, self._tell_some)
        elif self._readers:
            self._timer = self._clock.call_at(self._due_at, self._begin_tick)
