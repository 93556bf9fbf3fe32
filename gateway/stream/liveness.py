"""Pings the other side and notices when it no longer answers."""

from __future__ import annotations


class Liveness:
    """One ping at a time, every ``ping_interval_s``; unanswered for ``pong_timeout_s`` is dead.

    Only the answer counts. Bytes that arrive prove that the peer sends, not that it reads: a
    camera whose tab is frozen goes on uploading. Payloads travel in pieces, so a pong is never
    stuck behind a large one.
    """

    def __init__(self, *, ping_interval_s: float, pong_timeout_s: float, now: float) -> None:
        self._ping_interval_s = ping_interval_s
        self._pong_timeout_s = pong_timeout_s
        self._pinged_at = now
        self._awaited: float | None = None  # the ``t`` that has to come back

    def is_dead(self, now: float) -> bool:
        return self._awaited is not None and now >= self._pinged_at + self._pong_timeout_s

    def next_ping(self, now: float) -> float | None:
        """``t`` of the ping to send now (microseconds), or None when none is due."""
        if self._awaited is not None or now < self._pinged_at + self._ping_interval_s:
            return None
        self._pinged_at = now
        self._awaited = float(int(now * 1e6))
        return self._awaited

    def receive_pong(self, t: float) -> None:
        """An answer came; one to anything but the last ping is ignored."""
        if t == self._awaited:
            self._awaited = None
