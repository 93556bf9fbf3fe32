"""Sessions that wait for their client to come back: few, small, and not for long."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

MAX_SESSIONS = 256
MAX_BYTES = 64 * 1024 * 1024


class Detached(Protocol):
    """What is asked of a session that waits."""

    @property
    def id(self) -> str: ...

    def close(self, reason: str) -> None:
        """Give up waiting; calls ``remove``."""


@dataclass(slots=True)
class _Waiting:
    session: Detached
    size_bytes: int


@dataclass(frozen=True, slots=True, kw_only=True)
class DetachedStatistics:
    """``detached`` and ``size_bytes`` are gauges, the rest counts since the process began.

    ``resumed`` sessions have gone on on another connection, ``expired`` ones were not asked for in
    time, ``given_up`` were not waited for any longer, for want of room or because of the shutdown.
    """

    detached: int
    size_bytes: int
    resumed: int
    expired: int
    given_up: int


class DetachedSessions:
    """Bounded in number and in the bytes of their logs; over a bound the oldest is given up.

    How long each waits is the session's own business. After ``end_all`` nobody waits any more.
    """

    def __init__(self, *, max_sessions: int = MAX_SESSIONS, max_bytes: int = MAX_BYTES) -> None:
        self._max_sessions = max_sessions
        self._max_bytes = max_bytes
        self._waiting: dict[str, _Waiting] = {}  # oldest first
        self._size_bytes = 0
        self._num_resumed = 0
        self._num_expired = 0
        self._num_given_up = 0
        self.is_open = True

    def __len__(self) -> int:
        return len(self._waiting)

    @property
    def is_over(self) -> bool:
        """Whether ``enforce`` has something to do."""
        return len(self._waiting) > self._max_sessions or self._size_bytes > self._max_bytes

    def add(self, session: Detached, size_bytes: int) -> None:
        """The session has lost its connection and holds that many bytes."""
        self._waiting[session.id] = _Waiting(session, size_bytes)
        self._size_bytes += size_bytes

    def grow(self, session_id: str, num_bytes: int) -> None:
        """A session that waits holds more than before, or less; nothing for others."""
        waiting = self._waiting.get(session_id)
        if waiting is not None:
            waiting.size_bytes += num_bytes
            self._size_bytes += num_bytes

    def enforce(self) -> None:
        """Give the oldest up until the bounds hold."""
        while self.is_over:
            oldest = next(iter(self._waiting.values()))
            self._give_up(oldest.session, "too many sessions wait for their client")

    def resume(self, session_id: str) -> None:
        """The client is back, perhaps before its old connection was known to be lost."""
        self.remove(session_id)
        self._num_resumed += 1

    def expire(self, session: Detached) -> None:
        """The client did not come back in time."""
        if self.remove(session.id):
            self._num_expired += 1
        session.close("nobody came back")

    def remove(self, session_id: str) -> bool:
        """The session waits no more; returns whether it did."""
        waiting = self._waiting.pop(session_id, None)
        if waiting is not None:
            self._size_bytes -= waiting.size_bytes
        return waiting is not None

    def end_all(self) -> None:
        """The process ends: give up everybody, and whoever would come."""
        self.is_open = False
        for waiting in tuple(self._waiting.values()):
            self._give_up(waiting.session, "restarting")

    def statistics(self) -> DetachedStatistics:
        return DetachedStatistics(
            detached=len(self._waiting),
            size_bytes=self._size_bytes,
            resumed=self._num_resumed,
            expired=self._num_expired,
            given_up=self._num_given_up,
        )

    def check_integrity(self) -> None:
        """Assert the sums; tests call it after every step."""
        assert self._size_bytes == sum(w.size_bytes for w in self._waiting.values())

    def _give_up(self, session: Detached, reason: str) -> None:
        if self.remove(session.id):
            self._num_given_up += 1
        session.close(reason)
