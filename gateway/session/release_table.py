"""Tells engines how far the readers of their answers are, all in one tick of the process."""

from __future__ import annotations

from collections import deque
from typing import Protocol

from gateway.session.clock import Clock, Timer

INTERVAL_S = 0.05
# The engine forgets a record after a second, and takes a reader of whom it hears nothing for one
# that waits: a stalled one has to be told again and again.
REFRESH_TICKS = 8
READERS_PER_TURN = 64  # about half a millisecond; the loop has others to serve


class Reader(Protocol):
    """One answer on its way out."""

    def tell_release(self, *, is_refresh: bool) -> None:
        """Tell the engine how many of its tokens have left, and how fast more are going to (0.0: a
        reader that takes nothing); what it knows already only with ``is_refresh``."""


class ReleaseTable:
    """Holds the answers that are running, which their callers bound; ticks while there are any.

    Each tick tells what has changed since the last, and every ``REFRESH_TICKS`` ticks the rest.
    """

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._readers: dict[Reader, None] = {}  # in the order in which they came
        self._timer: Timer | None = None
        self._due_at = 0.0  # of the next tick
        self._rest: deque[Reader] = deque()  # of this tick
        self._num_ticks = 0

    def __len__(self) -> int:
        return len(self._readers)

    def add(self, reader: Reader) -> None:
        self._readers[reader] = None
        if self._timer is None:
            self._due_at = self._clock.now() + INTERVAL_S
            self._timer = self._clock.call_at(self._due_at, self._begin_tick)

    def remove(self, reader: Reader) -> None:
        """Idempotent."""
        self._readers.pop(reader, None)

    def _begin_tick(self) -> None:
        self._num_ticks += 1
        self._due_at = max(self._due_at + INTERVAL_S, self._clock.now())
        self._rest.extend(self._readers)
        self._tell_some()

    def _tell_some(self) -> None:
        is_refresh = self._num_ticks % REFRESH_TICKS == 0
        for _ in range(min(READERS_PER_TURN, len(self._rest))):
            reader = self._rest.popleft()
            if reader in self._readers:
                reader.tell_release(is_refresh=is_refresh)
        self._timer = None
        if self._rest:
            self._timer = self._clock.call_at(self._clock.now(), self._tell_some)
        elif self._readers:
            self._timer = self._clock.call_at(self._due_at, self._begin_tick)
