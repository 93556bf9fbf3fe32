"""Every timer of the process in one heap of milliseconds, over one timer of the event loop."""

from __future__ import annotations

import heapq
import logging
from collections.abc import Callable
from typing import Protocol

import msgspec

logger = logging.getLogger(__name__)

Callback = Callable[[], None]
TICKS_PER_S = 1000  # uvloop counts no finer
# A time that is a whole tick but for rounding must not wait for the next one.
EARLY_S = 2e-6
# Cancelled timers are kept until they are this many and the majority.
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
    """Absolute timers; those of one millisecond in the order of their making.

    They share an entry of the heap, which is so small that it stays in the processor's cache: of
    1,000 answers at 20 tokens/s, 50 entries. Who cancels, in O(1), also cleans up, so
    that there are no more cancelled timers than live ones after it (or ``_MIN_STALE``). How many
    live timers there are is for the callers to bound. A callback that raises is logged and
    stops no other. Belongs to the loop's thread.
    """

    def __init__(self, loop: TimerLoop) -> None:
        # Seconds on the loop's clock: monotonic, the same that deadlines are in. No method, because
        # a token asks three times.
        self.now: Callable[[], float] = loop.time
        self._loop = loop
        self._ticks: list[int] = []  # a heap of the keys of ``_timers``
        self._timers: dict[int, list[Timer]] = {}
        self._due: list[Timer] = []  # of this turn
        self._num_kept = 0  # in ``_timers``
        self._num_live = 0
        self._armed: LoopTimer | None = None
        self._armed_for = float("inf")  # a tick
        self._is_running = False

    def __len__(self) -> int:
        """Live timers."""
        return self._num_live

    def now_us(self) -> int:
        return int(self._loop.time() * 1e6)

    def call_at(self, when: float, callback: Callback) -> Timer:
        """Run ``callback`` once, a tick after ``when`` at the latest if the loop is free, and at
        most ``EARLY_S`` before it."""
        timer = Timer(self, callback)
        tick = int((when - EARLY_S / 2) * TICKS_PER_S) + 1
        timers = self._timers.get(tick)
        if timers is not None:
            timers.append(timer)
        else:
            self._timers[tick] = [timer]
            heapq.heappush(self._ticks, tick)
            if tick < self._armed_for:
                self._arm()
        self._num_kept += 1
        self._num_live += 1
        return timer

    def aclose(self) -> None:
        """Cancel everything; idempotent."""
        for timers in (self._due, *self._timers.values()):
            for timer in timers:
                timer.callback = None
        self._num_live = 0
        self._clean()
        self._arm()

    def _arm(self) -> None:
        earliest = self._ticks[0] if self._ticks else float("inf")
        if self._is_running or earliest == self._armed_for:
            return
        if self._armed is not None:
            self._armed.cancel()
            self._armed = None
        self._armed_for = earliest
        if self._ticks:
            self._armed = self._loop.call_at(earliest / TICKS_PER_S, self._run_due)

    def _run_due(self) -> None:
        self._armed = None
        self._is_running, self._armed_for = True, float("-inf")
        # Taken out first: what a callback arms for "now" waits for the loop's next turn, or two
        # could spin for ever.
        due = self._due
        last_tick = (self._loop.time() + EARLY_S / 2) * TICKS_PER_S
        while self._ticks and self._ticks[0] <= last_tick:
            due += self._timers.pop(heapq.heappop(self._ticks))
        self._num_kept -= len(due)
        try:
            for timer in due:
                callback = timer.callback
                if callback is None:
                    continue
                timer.callback = None
                self._num_live -= 1
                try:
                    callback()
                except Exception:  # one timer must not take the others with it
                    logger.exception("a timer failed")
        finally:
            due.clear()
            self._is_running, self._armed_for = False, float("inf")
            self._arm()

    def _forget_one(self) -> None:
        self._num_live -= 1
        num_stale = self._num_kept - self._num_live
        if self._num_live == 0 or num_stale > max(_MIN_STALE, self._num_live):
            self._clean()
        self._arm()

    def _clean(self) -> None:
        """Let the cancelled ones go."""
        live = {
            tick: [timer for timer in timers if timer.callback is not None]
            for tick, timers in self._timers.items()
        }
        self._timers = {tick: timers for tick, timers in live.items() if timers}
        self._ticks = sorted(self._timers)
        self._num_kept = sum(map(len, self._timers.values()))
