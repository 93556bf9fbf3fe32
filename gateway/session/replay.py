"""What a stream is told again once its client is back: without a pace, but not all in one turn."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable

from gateway.session.clock import Clock
from gateway.session.pacing import OFF_AHEAD
from gateway.session.telling import Telling
from gateway.session.text_stream import TextStream
from gateway.stream.entries import Entry
from gateway.stream.event_log import EVENT_BYTES, MAX_BYTES
from gateway.stream.leaky_bucket import LeakyBucket

# Missed events that leave together. Each has its number, so that they cannot become one, and a
# reader that is behind has to catch up with answers that go on meanwhile.
GROUP = OFF_AHEAD


class Replay:
    """The events that a client has missed, and behind them what is said meanwhile.

    ``bucket`` spreads them as it spreads text without a pace, one group for each message that it
    lets through: a burst at once, then an even rate, while fewer than ``GROUP`` wait for the
    socket. A group is ``GROUP`` events and as many again as have come since the one before it:
    each leaves the queue shorter, however fast the stream's answers are.

    They begin as those of the stream's log, and no more than that may wait: what comes beyond
    ``max_bytes`` (text, and ``EVENT_BYTES`` each) pushes the oldest out to the socket's own queue,
    which has its own bound. Nothing is given up, and the order stays.
    """

    def __init__(
        self,
        stream: TextStream,
        events: Iterable[Entry],
        *,
        telling: Telling,
        clock: Clock,
        bucket: LeakyBucket,
        max_bytes: int = MAX_BYTES,
    ) -> None:
        self._stream = stream
        self._events = deque(events)
        self._size_bytes = sum(map(kept_bytes, self._events))
        self._max_bytes = max_bytes
        self._num_new = 0  # events that have come since the newest group left
        self._telling = telling
        self._clock = clock
        self._bucket = bucket

    def start(self) -> None:
        """The burst leaves now, the rest by itself."""
        while self._events and self._bucket.next_time() <= self._clock.now():
            self._send_group()
        self._go_on()

    def hold(self, event: Entry) -> None:
        """It follows everything else."""
        self._events.append(event)
        self._size_bytes += kept_bytes(event)
        self._num_new += 1
        if self._size_bytes > self._max_bytes:
            del self._telling.holding[self._stream.id]
            while self._size_bytes > self._max_bytes:
                self._send_oldest()
            self._telling.holding[self._stream.id] = self.hold

    def _tick(self) -> None:
        if self._telling.holding.get(self._stream.id) != self.hold:
            return  # the connection is lost
        del self._telling.holding[self._stream.id]
        if self._telling.num_waiting(self._stream) < GROUP:
            self._send_group()
        else:
            self._bucket.add(self._clock.now())  # the socket is slower than that
        self._go_on()

    def _send_group(self) -> None:
        self._bucket.add(self._clock.now())
        for _ in range(min(GROUP + self._num_new, len(self._events))):
            self._send_oldest()
        self._num_new = 0

    def _send_oldest(self) -> None:
        event = self._events.popleft()
        self._size_bytes -= kept_bytes(event)
        self._telling.put(self._stream, event)

    def _go_on(self) -> None:
        if self._events:
            self._telling.holding[self._stream.id] = self.hold
            self._clock.call_at(self._bucket.next_time(), self._tick)


def kept_bytes(event: Entry) -> int:
    """What it takes while it waits, as the stream's log counts it."""
    return event.size_bytes + EVENT_BYTES
