"""One heap for every timer of the process, over one timer of the event loop."""

from __future__ import annotations

import heapq
import logging
from collections.abc import Callable
from typing import Protocol

import msgspec

logger = logging.getLogger(__name__)

Callback = Callable[[], None]
# uvloop counts in whole milliseconds: half of one early is as near as half of one late, and a loop
# that had to wait for the rest of it would spin.
EARLY_S = 0.0005
# Cancelled timers stay in the heap until they are this many and the majority.
_MIN_STALE = 64


class LoopTimer(Protocol):
    """What the loop's ``call_at`` returns."""

    def cancel(self) -> None: ...


class TimerLoop(Protocol):
    """The part of ``asyncio.AbstractEventLoop`` in use."""

    def time(self) -> float: ...

    def call_at(self, when: float, callback: Callback, /) -> LoopTimer: ...


# One for every token: see ``gateway.stream.entries``.
class Timer(msgspec.Struct, eq=False):
    """A callback to come. ``cancel`` is idempotent, also after it ran."""

    clock: Clock
    callback: Callback | None  # None: it is over

    def cancel(self) -> None:
        if self.callback is not None:
            self.callback = None
            self.clock._forget_one()


class Clock:
    """Absolute timers in the order of their times; those of one time in the order of their making.

    The heap holds live timers and, at most as many again (or ``_MIN_STALE``), cancelled ones:
    cancelling is O(1) and cleaning up is paid by those who cancel. How many live timers there are
    is for the callers to bound. A callback that raises is logged and stops no other. Belongs to
    the loop's thread.
    """

    def __init__(self, loop: TimerLoop) -> None:
        # Seconds on the loop's clock: monotonic, the same that deadlines are in. No method, because
        # a token asks three times.
        self.now: Callable[[], float] = loop.time
        self._loop = loop
        self._heap: list[tuple[float, int, Timer]] = []
        self._num_made = 0
        self._num_stale = 0
        self._armed: LoopTimer | None = None
        self._armed_for = float("inf")
        self._is_running = False

    def __len__(self) -> int:
        """Live timers."""
        return len(self._heap) - self._num_stale

    def now_us(self) -> int:
        return int(self._loop.time() * 1e6)

    def call_at(self, when: float, callback: Callback) -> Timer:
        """Run ``callback`` once, at most ``EARLY_S`` before ``when``."""
        timer = Timer(self, callback)
        self._num_made += 1
        heapq.heappush(self._heap, (when, self._num_made, timer))
        if when < self._armed_for:
            self._arm()
        return timer

    def aclose(self) -> None:
        """Cancel everything; idempotent."""
        for _, _, timer in self._heap:
            timer.callback = None
        self._heap.clear()
        self._num_stale = 0
        self._arm()

    def _arm(self) -> None:
        earliest = self._heap[0][0] if self._heap else float("inf")
        if self._is_running or earliest == self._armed_for:
            return
        if self._armed is not None:
            self._armed.cancel()
            self._armed = None
        self._armed_for = earliest
        if self._heap:
            self._armed = self._loop.call_at(earliest, self._run_due)

    def _run_due(self) -> None:
        self._armed = None
        self._is_running, self._armed_for = True, float("-inf")
        # What a callback arms for "now" waits for the loop's next turn, or two could spin for ever.
        due, last_made = self._loop.time() + EARLY_S, self._num_made
        try:
            while self._heap:
                when, number, timer = self._heap[0]
                if when > due or number > last_made:
                    break
                heapq.heappop(self._heap)
                callback, timer.callback = timer.callback, None
                if callback is None:
                    self._num_stale -= 1
                    continue
                try:
                    callback()
                except Exception:  # one timer must not take the others with it
                    logger.exception("a timer failed")
        finally:
            self._is_running, self._armed_for = False, float("inf")
            self._arm()

    def _forget_one(self) -> None:
        self._num_stale += 1
        num_timers = len(self._heap)
        if self._num_stale == num_timers or self._num_stale > max(_MIN_STALE, num_timers // 2):
            self._heap = [entry for entry in self._heap if entry[2].callback is not None]
            heapq.heapify(self._heap)
            self._num_stale = 0
        self._arm()
