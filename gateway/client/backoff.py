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
        self._attempt = 0

    @property
    def attempt(self) -> int:
        """Attempts since the last reset."""
        return self._attempt

    def next_delay_s(self) -> float:
        """How long to wait before the next attempt."""
        # The exponent is capped too: 2.0**1024 would overflow after a long outage.
        ceiling_s = min(self._cap_s, self._base_s * 2.0 ** min(self._attempt, 32))
        self._attempt += 1
        return self._random.uniform(0.0, ceiling_s)

    def reset(self) -> None:
        """A connection has proved stable."""
        self._attempt = 0
