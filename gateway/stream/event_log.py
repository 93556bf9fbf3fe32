"""What was told on one stream of tokens and may have to be told again."""

from __future__ import annotations

from collections import deque
from itertools import islice

from gateway.stream.entries import EVENT, Outgoing

# Half a minute at 270 events a second: readers do not outrun that, machines may.
MAX_EVENTS = 8192
MAX_BYTES = 2 * 1024 * 1024
EVENT_BYTES = 160  # of memory, beside an event's text, while it is told again


class EventLog:
    """The newest events of ``stream`` that the client has not acknowledged, in order, without gaps.

    Their encoded texts are all that is kept: the rest is the same for each, and one more object for
    every token is one more miss of the processor's cache when it is made and when it goes.
    Recovery is all or nothing: ``after`` has every event that follows, or none. Beyond
    ``max_events`` and ``max_bytes`` the oldest are forgotten, and who needs them cannot be helped
    any more. An acknowledgement forgets what it covers.
    """

    # On every token's path: see ``gateway.stream.stream_queue.StreamQueue``.
    __slots__ = (
        "_acknowledged",
        "_max_bytes",
        "_max_events",
        "_stream",
        "_texts",
        "next_seq",
        "size_bytes",
    )

    def __init__(
        self, stream: int, *, max_events: int = MAX_EVENTS, max_bytes: int = MAX_BYTES
    ) -> None:
        self._stream = stream
        self._max_events = max_events
        self._max_bytes = max_bytes
        self._texts: deque[bytes] = deque()
        self._acknowledged = -1
        self.next_seq = 0  # of the event to come
        self.size_bytes = 0

    def __len__(self) -> int:
        return len(self._texts)

    @property
    def first_seq(self) -> int:
        """Of the oldest event that is kept; ``next_seq`` if there is none."""
        return self.next_seq - len(self._texts)

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
        data, texts = event.data, self._texts
        num_bytes = len(data) + EVENT_BYTES
        texts.append(data)
        self.next_seq += 1
        self.size_bytes += num_bytes
        while len(texts) > self._max_events or self.size_bytes > self._max_bytes:
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
        texts = islice(self._texts, last_seq + 1 - self.first_seq, None)
        return tuple(
            Outgoing(kind=EVENT, data=data, stream=self._stream, seq=seq)
            for seq, data in enumerate(texts, last_seq + 1)
        )

    def check_integrity(self) -> None:
        """Assert the sums; tests call it after every step."""
        assert self.size_bytes == sum(len(data) + EVENT_BYTES for data in self._texts)
        assert self.size_bytes <= self._max_bytes
        assert len(self._texts) <= self._max_events
        assert 0 <= self.first_seq <= self.next_seq

    def _forget(self, num_events: int) -> int:
        """Let the oldest go (none, if ``num_events`` is negative); returns their bytes."""
        num_bytes = 0
        for _ in range(num_events):
            num_bytes += len(self._texts.popleft()) + EVENT_BYTES
        self.size_bytes -= num_bytes
        return num_bytes
