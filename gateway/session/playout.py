"""Holds the results of one stream until their time on its playout clock."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass

from engine.types import Result
from gateway.session.clock import EARLY_S, Clock, Timer
from gateway.stream.playout import PlayoutClock


@dataclass(frozen=True, slots=True)
class _Held:
    release_at: float
    seq: int
    result: Result


class Playout:
    """First in, first out: one timer, for the first that waits.

    How many wait is bounded by the stream's credit, and how long by ``max_delay_s`` and by each
    frame's deadline. ``release(seq, result)`` is called on time, perhaps inside ``put``.
    """

    def __init__(
        self, clock: Clock, *, max_delay_s: float, release: Callable[[int, Result], None]
    ) -> None:
        self._clock = clock
        self._playout = PlayoutClock(max_delay_s=max_delay_s)
        self._release = release
        self._held: deque[_Held] = deque()
        self._timer: Timer | None = None

    @property
    def seqs(self) -> tuple[int, ...]:
        """The frames whose results wait, in order."""
        return tuple(held.seq for held in self._held)

    def put(self, seq: int, t_us: int, deadline: float | None, result: Result) -> bool:
        """Hold the result of a frame captured at ``t_us``; False when it is too late to be shown.
        Frames come in order."""
        now = self._clock.now()
        release_at = self._playout.schedule(t_us, now)
        if release_at is None:
            return False
        if deadline is not None:
            release_at = min(release_at, deadline)
        if release_at <= now and not self._held:
            self._release(seq, result)
            return True
        self._held.append(_Held(release_at, seq, result))
        if len(self._held) == 1:
            self._arm()
        return True

    def withdraw(self, seq: int) -> None:
        """The frame is answered otherwise; nothing for one that does not wait."""
        self._held = deque(held for held in self._held if held.seq != seq)
        self._arm()

    def clear(self) -> None:
        """Forget everything; idempotent."""
        self._held.clear()
        self._arm()

    def _arm(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        if self._held:
            self._timer = self._clock.call_at(self._held[0].release_at, self._release_due)

    def _release_due(self) -> None:
        self._timer = None
        while self._held and self._held[0].release_at <= self._clock.now() + EARLY_S:
            held = self._held.popleft()
            self._release(held.seq, held.result)
        self._arm()
