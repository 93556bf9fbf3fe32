"""Tells engines how far the readers of their answers are, all in one tick of the process."""

from __future__ import annotations

from typing import Protocol

from engine.base import TextLane
from gateway.session.clock import Clock, Timer

INTERVAL_S = 0.05
# The engine forgets a record after a second, and takes a reader of whom it hears nothing for one
# that waits: a stalled one has to be told again and again.
REFRESH_TICKS = 8


class Reader(Protocol):
    """One answer on its way out."""

    @property
    def lane(self) -> TextLane: ...

    @property
    def item_id(self) -> int: ...

    @property
    def num_released(self) -> int:
        """Tokens of the engine that have left."""

    @property
    def release_rate(self) -> float:
        """Tokens per second that are going to leave; 0.0 of a reader that takes nothing."""


class ReleaseTable:
    """Holds the answers that are running, which their callers bound; ticks while there are any.

    Each tick tells what has changed since the last, and every ``REFRESH_TICKS`` ticks the rest.
    """

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._told: dict[Reader, tuple[int, float] | None] = {}
        self._timer: Timer | None = None
        self._num_ticks = 0

    def __len__(self) -> int:
        return len(self._told)

    def add(self, reader: Reader) -> None:
        self._told[reader] = None
        if self._timer is None:
            self._arm(self._clock.now() + INTERVAL_S)

    def remove(self, reader: Reader) -> None:
        """Idempotent."""
        self._told.pop(reader, None)

    def _arm(self, when: float) -> None:
        self._timer = self._clock.call_at(when, self._tick)

    def _tick(self) -> None:
        self._timer = None
        self._num_ticks += 1
        is_refresh = self._num_ticks % REFRESH_TICKS == 0
        for reader, told in list(self._told.items()):
            state = (reader.num_released, reader.release_rate)
            if state != told or is_refresh:
                self._told[reader] = state
                reader.lane.note_release(reader.item_id, *state)
        if self._told:
            self._arm(self._clock.now() + INTERVAL_S)
