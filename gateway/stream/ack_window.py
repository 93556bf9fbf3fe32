"""Tells a client that reads from one that only keeps its socket open."""

from __future__ import annotations

from collections import deque

WINDOW_MESSAGES = 16


class EventAcks:
    """Events of one stream that the client has not acknowledged: as ``AckWindow`` for numbers
    without gaps, of which two are enough to know."""

    __slots__ = ("_acknowledged_seq", "_deadline_s", "_full_since", "sent_seq")

    def __init__(self, deadline_s: float) -> None:
        self.sent_seq = -1  # of the newest event that was written
        self._deadline_s = deadline_s
        self._acknowledged_seq = -1
        self._full_since: float | None = None

    @property
    def stalls_at(self) -> float | None:
        """When the stream counts as stalled if nothing is acknowledged; None: not in sight."""
        return None if self._full_since is None else self._full_since + self._deadline_s

    def sent(self, seq: int, now: float) -> None:
        """The event was written."""
        if seq > self.sent_seq:
            self.sent_seq = seq
            if self._full_since is None and seq - self._acknowledged_seq >= WINDOW_MESSAGES:
                self._full_since = now

    def acknowledge(self, seq: int, now: float) -> None:
        """The client has processed everything up to ``seq``."""
        if seq > self._acknowledged_seq:
            self._acknowledged_seq = seq
            is_full = self.sent_seq - seq >= WINDOW_MESSAGES
            self._full_since = now if is_full else None

    def restart(self, seq: int) -> None:
        """Another connection: nothing was sent on it yet, and the client has all up to ``seq``."""
        self._acknowledged_seq = max(self._acknowledged_seq, seq)
        self.sent_seq = max(self.sent_seq, seq)
        self._full_since = None


class AckWindow:
    """Results of one stream that the client has not acknowledged.

    A write is not a delivery: kernels and proxies swallow megabytes for a reader that has stopped.
    With ``WINDOW_MESSAGES`` results unacknowledged, and no acknowledgement that gets further for
    ``deadline_s``, the stream is stalled. Only the newest ``WINDOW_MESSAGES`` are remembered:
    whether the window is full is all that matters.
    """

    __slots__ = ("_acknowledged_seq", "_deadline_s", "_full_since", "_unacknowledged")

    def __init__(self, deadline_s: float) -> None:
        self._deadline_s = deadline_s
        self._unacknowledged: deque[int] = deque(maxlen=WINDOW_MESSAGES)
        self._acknowledged_seq = -1  # up to where the client has processed the stream
        self._full_since: float | None = None

    @property
    def stalls_at(self) -> float | None:
        """When the stream counts as stalled if nothing is acknowledged; None: not in sight."""
        return None if self._full_since is None else self._full_since + self._deadline_s

    def sent(self, seq: int, now: float) -> None:
        """The result of frame ``seq`` was written."""
        if seq <= self._acknowledged_seq:
            return  # acknowledged ahead, with a later frame's drop
        unacknowledged = self._unacknowledged
        unacknowledged.append(seq)
        if len(unacknowledged) == WINDOW_MESSAGES and self._full_since is None:
            self._full_since = now

    def acknowledge(self, seq: int, now: float) -> None:
        """The client has processed everything up to ``seq``."""
        if seq <= self._acknowledged_seq:
            return
        self._acknowledged_seq = seq
        unacknowledged = self._unacknowledged
        while unacknowledged and unacknowledged[0] <= seq:
            unacknowledged.popleft()
        self._full_since = now if len(unacknowledged) == WINDOW_MESSAGES else None

    def restart(self, seq: int) -> None:
        """Another connection: nothing was sent on it yet, and the client has all up to ``seq``."""
        self._acknowledged_seq = max(self._acknowledged_seq, seq)
        self._unacknowledged.clear()
        self._full_since = None
