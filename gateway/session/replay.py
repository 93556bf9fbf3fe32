"""What a stream is told again once its client is back: without a pace, but not all in one turn."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable

from gateway.session.clock import Clock
from gateway.session.deliver import Deliver
from gateway.session.pacing import OFF_AHEAD
from gateway.session.text_stream import TextStream
from gateway.stream.entries import Entry
from gateway.stream.leaky_bucket import LeakyBucket

# Events that leave together. Each has its number, so that they cannot become one, and a reader
# that is behind has to catch up with answers that go on meanwhile.
GROUP = OFF_AHEAD


class Replay:
    """The events that a client has missed, and behind them what is said meanwhile.

    ``bucket`` spreads them as it spreads text without a pace, ``GROUP`` events for each message
    that it lets through: a burst at once, then an even rate, while fewer than ``GROUP`` wait for
    the socket. They are those of the stream's log, so their number is bounded; what is said
    meanwhile comes more slowly than they leave.
    """

    def __init__(
        self,
        stream: TextStream,
        events: Iterable[Entry],
        *,
        deliver: Deliver,
        clock: Clock,
        bucket: LeakyBucket,
    ) -> None:
        self._stream = stream
        self._events = deque(events)
        self._deliver = deliver
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

    def _tick(self) -> None:
        if self._deliver.holding.get(self._stream.id) != self.hold:
            return  # the connection is lost
        del self._deliver.holding[self._stream.id]
        if self._deliver.num_waiting(self._stream) < GROUP:
            self._send_group()
        else:
            self._bucket.add(self._clock.now())  # the socket is slower than that
        self._go_on()

    def _send_group(self) -> None:
        self._bucket.add(self._clock.now())
        for _ in range(min(GROUP, len(self._events))):
            self._deliver.put(self._stream, self._events.popleft())

    def _go_on(self) -> None:
        if self._events:
            self._deliver.holding[self._stream.id] = self.hold
            self._clock.call_at(self._bucket.next_time(), self._tick)
