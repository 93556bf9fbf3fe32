"""Pings the other side and notices when it no longer answers."""

from __future__ import annotations

# Ten times as often at the start, so that the client's clock and the jitter are known early.
FIRST_PINGS = 4
FIRST_SHARE = 0.1


class Liveness:
    """One ping at a time, every ``ping_interval_s``; unanswered for ``pong_timeout_s`` is dead.

    Only the answer counts. Bytes that arrive prove that the peer sends, not that it reads: a
    camera whose tab is frozen goes on uploading. Payloads travel in pieces, so a pong is never
    stuck behind a large one. The first ``FIRST_PINGS`` come after ``FIRST_SHARE`` of the interval.
    """

    def __init__(self, *, ping_interval_s: float, pong_timeout_s: float, now: float) -> None:
        self._ping_interval_s = ping_interval_s
        self._pong_timeout_s = pong_timeout_s
        self._num_pings = 0
        self._pinged_at = now
        self._awaited: float | None = None  # the ``t`` that has to come back

    def is_dead(self, now: float) -> bool:
        return self._awaited is not None and now >= self._pinged_at + self._pong_timeout_s

    def next_ping(self, now: float) -> float | None:
        """``t`` of the ping to send now (microseconds), or None when none is due."""
        share = FIRST_SHARE if self._num_pings < FIRST_PINGS else 1.0
        if self._awaited is not None or now < self._pinged_at + share * self._ping_interval_s:
            return None
        self._num_pings += 1
        self._pinged_at = now
        self._awaited = float(int(now * 1e6))
        return self._awaited

    def receive_pong(self, t: float) -> float | None:
        """When the ping was sent that this answers; None, and nothing else, for any but the last
        one."""
        if t != self._awaited:
            return None
        self._awaited = None
        return self._pinged_at
