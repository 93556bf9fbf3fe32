"""A clock that stands still until a test moves it."""

from __future__ import annotations

import heapq
import itertools
from collections.abc import Callable


class VirtualTimer:
    """What ``call_at`` returns."""

    def __init__(self) -> None:
        self.is_cancelled = False

    def cancel(self) -> None:
        self.is_cancelled = True


class VirtualLoop:
    """The part of an event loop that ``gateway.session.clock.Clock`` uses."""

    def __init__(self, start: float = 1000.0) -> None:
        self._now = start
        self._timers: list[tuple[float, int, VirtualTimer, Callable[[], None]]] = []
        self._order = itertools.count()

    def time(self) -> float:
        return self._now

    def call_at(self, when: float, callback: Callable[[], None], /) -> VirtualTimer:
        timer = VirtualTimer()
        heapq.heappush(self._timers, (when, next(self._order), timer, callback))
        return timer

    @property
    def num_armed(self) -> int:
        return sum(not timer.is_cancelled for _, _, timer, _ in self._timers)

    def advance(self, seconds: float) -> None:
        """Let time pass, running what comes due at its own time."""
        end = self._now + seconds
        while self._timers and self._timers[0][0] <= end:
            when, _, timer, callback = heapq.heappop(self._timers)
            self._now = max(self._now, when)
            if not timer.is_cancelled:
                callback()
        self._now = end

    def stand_still(self, seconds: float) -> None:
        """Let time pass in which nothing runs, as when a process is suspended."""
        self._now += seconds
