"""When to come back after a lost connection: exponential backoff with full jitter."""

from __future__ import annotations

import random

ABNORMAL = 1006  # never travels: it stands for a connection that just broke
_RETRYABLE_STANDARD = frozenset({1001, ABNORMAL, 1011, 1012, 1013})


def may_reconnect(code: int) -> bool:
    """Whether the protocol lets a client come back by itself after this close code."""
    return code in _RETRYABLE_STANDARD or 4000 <= code <= 4499


def may_resume(code: int) -> bool:
    """Whether the server still has what was under way on a connection that ended with this code:
    it broke, or the server gave it up, but neither side was done."""
    return code == ABNORMAL or 4000 <= code <= 4499


class Backoff:
    """Delays before attempts 1, 2, 3, …: uniform in 0..min(cap, base * 2**(n-1)) seconds.

    Full jitter spreads the clients of a restarted server evenly, which a fixed part would not.
    """

    def __init__(
        self, *, base_s: float = 0.5, cap_s: float = 30.0, source: random.Random | None = None
    ) -> None:
        self._base_s = base_s
        self._cap_s = cap_s
        self._random = source or random.Random()
        self._attempt = self._num_doublings = 0

    @property
    def attempt(self) -> int:
        """Attempts since the last reset."""
        return self._attempt

    def next_delay_s(self, cap_s: float | None = None) -> float:
        """How long to wait before the next attempt; ``cap_s`` may be tighter this time.

        Attempts under a tight cap come quickly: they do not make the waits after it longer.
        """
        cap_s = self._cap_s if cap_s is None else min(cap_s, self._cap_s)
        ceiling_s = min(self._base_s * 2.0**self._num_doublings, cap_s)
        self._attempt += 1
        if ceiling_s < cap_s:
            self._num_doublings += 1
        return self._random.uniform(0.0, ceiling_s)

    def reset(self) -> None:
        """A connection has proved stable."""
        self._attempt = self._num_doublings = 0
