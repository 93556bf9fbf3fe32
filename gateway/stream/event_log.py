"""What was told on one stream of tokens and may have to be told again."""

from __future__ import annotations

from collections import deque
from itertools import islice

from gateway.stream.entries import Outgoing

# Half a minute at 270 events a second: readers do not outrun that, machines may.
MAX_EVENTS = 8192
MAX_BYTES = 2 * 1024 * 1024
EVENT_BYTES = 160  # of memory, beside an event's text


class EventLog:
    """The newest events that the client has not acknowledged, in order and without gaps.

    Recovery is all or nothing: ``after`` has every event that follows, or none. Beyond
    ``max_events`` and ``max_bytes`` the oldest are forgotten, and who needs them cannot be helped
    any more. An acknowledgement forgets what it covers.
    """

    # On every token's path: see ``gateway.stream.stream_queue.StreamQueue``.
    __slots__ = ("_acknowledged", "_events", "_max_bytes", "_max_events", "next_seq", "size_bytes")

    def __init__(self, *, max_events: int = MAX_EVENTS, max_bytes: int = MAX_BYTES) -> None:
        self._max_events = max_events
        self._max_bytes = max_bytes
        self._events: deque[Outgoing] = deque()
        self._acknowledged = -1
        self.next_seq = 0  # of the event to come
        self.size_bytes = 0

    def __len__(self) -> int:
        return len(self._events)

    @property
    def first_seq(self) -> int:
        """Of the oldest event that is kept; ``next_seq`` if there is none."""
        return self.next_seq - len(self._events)

    @property
    def is_whole(self) -> bool:
        """Whether nothing was forgotten that the client has not acknowledged."""
        return self.first_seq <= self._acknowledged + 1

    def append(self, event: Outgoing) -> int:
        """Keep the event and return how many bytes the log has grown by.

        Raises:
            ValueError: it is not the next one; nothing has changed.
        """
        if event.seq != self.next_seq:
            raise ValueError(f"event {event.seq} cannot follow {self.next_seq - 1}")
        num_bytes, events = len(event.data) + EVENT_BYTES, self._events
        events.append(event)
        self.next_seq += 1
        self.size_bytes += num_bytes
        while len(events) > self._max_events or self.size_bytes > self._max_bytes:
            num_bytes -= self._forget(1)
        return num_bytes

    def acknowledge(self, seq: int) -> None:
        """The client has everything up to ``seq``; what lies beyond the newest event is ignored."""
        self._acknowledged = max(self._acknowledged, min(seq, self.next_seq - 1))
        self._forget(self._acknowledged + 1 - self.first_seq)

    def after(self, last_seq: int) -> tuple[Outgoing, ...] | None:
        """Everything that follows ``last_seq`` (-1: from the beginning); None if it is not known.

        It is not known when it is forgotten, and when no such event was told yet.
        """
        if not self.first_seq <= last_seq + 1 <= self.next_seq:
            return None
        return tuple(islice(self._events, last_seq + 1 - self.first_seq, None))

    def check_integrity(self) -> None:
        """Assert the sums; tests call it after every step."""
        assert self.size_bytes == sum(len(e.data) + EVENT_BYTES for e in self._events)
        assert self.size_bytes <= self._max_bytes
        assert len(self._events) <= self._max_events
        assert [event.seq for event in self._events] == list(range(self.first_seq, self.next_seq))

    def _forget(self, num_events: int) -> int:
        """Let the oldest go (none, if ``num_events`` is negative); returns their bytes."""
        num_bytes = 0
        for _ in range(num_events):
            num_bytes += len(self._events.popleft().data) + EVENT_BYTES
        self.size_bytes -= num_bytes
        return num_bytes
