"""When a worker that died is started again (pure)."""

from __future__ import annotations

from collections import deque
from typing import NamedTuple

BASE_DELAY_S = 0.05
MAX_DELAY_S = 10.0


class Restart(NamedTuple):
    """Start again after ``delay_s``; ``is_probe`` when the circuit is open until that succeeds."""

    delay_s: float
    is_probe: bool


class RestartPolicy:
    """Exponential backoff with jitter; more than ``max_restarts`` useless workers within
    ``window_s`` open the circuit, and then there is one attempt, a probe, per window.

    A worker that answered something before it died does not count: the model works, and one
    caller's poison must not shut out the others. Its item is quarantined at the second death.
    """

    def __init__(self, max_restarts: int, window_s: float) -> None:
        self._max_restarts = max_restarts
        self._window_s = window_s
        self._deaths: deque[float] = deque(maxlen=max_restarts + 1)
        self._useless = 0

    def note_death(self, now: float, *, was_useful: bool, jitter: float) -> Restart:
        """Decide what follows a death.

        Args:
            was_useful: it answered something; backoff and count start anew.
            jitter: 0..1, drawn by the caller; workers that died together come back apart.
        """
        if was_useful:
            self._useless = 0
            self._deaths.clear()
            return Restart(BASE_DELAY_S * (0.5 + jitter), False)
        self._useless += 1
        self._deaths.append(now)
        recent = sum(now - death < self._window_s for death in self._deaths)
        if recent > self._max_restarts:
            return Restart(self._window_s, True)
        delay_s = min(MAX_DELAY_S, BASE_DELAY_S * 2.0 ** min(self._useless, 30))
        return Restart(delay_s * (0.5 + jitter), False)
