"""Limits a rate and lets short bursts through."""

from __future__ import annotations

# A source at exactly the rate must not lose a token to rounding.
_ALMOST_ONE = 1 - 1e-6


class TokenBucket:
    """``rate_hz`` events a second on average, at most ``capacity`` of them at once.

    Starts full. Time never runs backwards here: an earlier ``now`` adds nothing.
    """

    def __init__(self, rate_hz: float, capacity: float) -> None:
        if not rate_hz > 0 or not capacity >= 1:
            raise ValueError(f"rate {rate_hz} must be > 0 and capacity {capacity} >= 1")
        self._rate_hz = rate_hz
        self._capacity = capacity
        self._tokens = capacity
        self._updated_at = float("-inf")

    def try_take(self, now: float) -> bool:
        """Take one token if there is one."""
        if now > self._updated_at:
            tokens = self._tokens + (now - self._updated_at) * self._rate_hz
            self._tokens = tokens if tokens < self._capacity else self._capacity
            self._updated_at = now
        if self._tokens < _ALMOST_ONE:
            return False
        self._tokens -= 1
        return True
