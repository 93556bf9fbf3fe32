"""What one connection has yet to send, and in which order it leaves."""

from __future__ import annotations

import heapq
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

from gateway.stream.entries import Entry, Outgoing, OutgoingKind
from gateway.stream.stream_queue import StreamQueue
from gateway.wire.codec import encode
from gateway.wire.messages import Credit, ServerMessage

MAX_CONTROL = 256
# Lossless results arrive a batch at a time and credit is their brake; a healthy reader must not
# lose its connection because a batch of large ones was finished at once.
KEPT_FACTOR = 4


class OutboxFull(Exception):
    """The client reads too slowly for what must not be dropped."""


def _ignore() -> None:
    """Until the writer has said how to wake it."""


def _ignore_settled(stream: int, seq: int, delivered: bool) -> None:
    """Until the session has said where it counts."""


def _ignore_popped(outgoing: Outgoing) -> None:
    """Until the session has said where it counts."""


@dataclass(slots=True)
class _Share:
    """A stream's turn among the others."""

    queue: StreamQueue
    finish: float = 0.0  # virtual time at which what it has sent is paid off
    is_scheduled: bool = False


class Outbox:
    """Bounded and pure: chooses each message at the moment when the writer can send it.

    Order: messages about the connection and credit first; then the streams, sharing the bytes by
    weight (start-time fair queueing); inside a stream first in, first out. One message at a time
    leaves, so control and other streams pass between the pieces of a large attachment.

    A result is decided when its first message leaves: ``on_settled(stream, seq, delivered)`` tells
    it, and ``on_popped`` every message that leaves. Past its deadline a result leaves as
    ``drop(late)``, unless the stream is lossless. Drops of the same reason merge while they wait.

    Bounds: over ``max_bytes``, the oldest waiting results of the stream with most bytes become
    ``drop(late)``. What may not be given up (lossless results, errors) may grow to ``KEPT_FACTOR``
    times that, then ``OutboxFull``, as beyond ``max_control`` messages about the connection. One
    answer is always let in, however large. How many answers a stream can have waiting is bounded
    by its credit.
    """

    def __init__(self, *, max_bytes: int, max_control: int = MAX_CONTROL) -> None:
        self.on_wake: Callable[[], None] = _ignore
        self.on_settled: Callable[[int, int, bool], None] = _ignore_settled
        self.on_popped: Callable[[Outgoing], None] = _ignore_popped
        self._max_bytes = max_bytes
        self._max_control = max_control
        self._control: deque[bytes] = deque()
        self._control_bytes = 0
        self._credits: dict[int, Credit] = {}  # the newest per stream
        self._shares: dict[int, _Share] = {}
        self._schedule: list[tuple[float, int, _Share]] = []  # heap by virtual start
        self._virtual_time = 0.0
        self._num_scheduled = 0  # ties leave in the order in which they were scheduled

    @property
    def size_bytes(self) -> int:
        """Bytes waiting, without what has been popped and grants of credit."""
        return self._control_bytes + sum(s.queue.size_bytes for s in self._shares.values())

    @property
    def is_empty(self) -> bool:
        return not self._control and not self._credits and self._num_answers == 0

    def open_stream(self, stream: int, *, weight: float, keeps_late: bool) -> None:
        """Make room for a stream; it is forgotten when its ``closed`` is popped.

        Raises:
            ValueError: it is open already.
        """
        if stream in self._shares:
            raise ValueError(f"stream {stream} is open")
        settle = partial(self._settle, stream)
        queue = StreamQueue(stream, settle, weight=weight, keeps_late=keeps_late)
        self._shares[stream] = _Share(queue)

    def put_control(self, message: ServerMessage) -> None:
        """Queue a message about the connection, or a grant, which replaces an older one.

        Raises:
            OutboxFull: too many of them wait, or too many bytes.
        """
        if isinstance(message, Credit):
            if message.stream in self._shares:  # else its ``closed`` has gone out
                self._credits[message.stream] = message
        elif len(self._control) >= self._max_control:
            raise OutboxFull(f"{self._max_control} control messages wait for a slow reader")
        else:
            data = encode(message)
            self._control.append(data)
            self._control_bytes += len(data)
            self._make_room()
        self.on_wake()

    def put(self, stream: int, entry: Entry) -> None:
        """Queue an entry of an open stream.

        Raises:
            OutboxFull: no room, and nothing that may be given up.
        """
        share = self._shares[stream]
        share.queue.put(entry)
        self._activate(share)
        self._make_room()
        self.on_wake()

    def pop(self, now: float) -> Outgoing | None:
        """The next message, or None when nothing waits."""
        outgoing = self._pop_control() or self._pop_stream(now)
        if outgoing is not None:
            self.on_popped(outgoing)
        return outgoing

    def clear(self) -> None:
        """Forget everything, undecided: the connection is gone."""
        self._control.clear()
        self._control_bytes = 0
        self._credits.clear()
        self._shares.clear()
        self._schedule.clear()

    def check_integrity(self) -> None:
        """Assert the sums; tests call it after every step."""
        assert self._control_bytes == sum(map(len, self._control))
        for share in self._shares.values():
            share.queue.check_integrity()
            assert share.is_scheduled == (len(share.queue) > 0)
        assert len(self._schedule) == sum(s.is_scheduled for s in self._shares.values())
        assert self._credits.keys() <= self._shares.keys()

    def _pop_control(self) -> Outgoing | None:
        if self._control:
            data = self._control.popleft()
            self._control_bytes -= len(data)
            return Outgoing(kind=OutgoingKind.CONTROL, data=data)
        if self._credits:
            stream = next(iter(self._credits))
            credit = self._credits.pop(stream)
            return Outgoing(kind=OutgoingKind.CONTROL, data=encode(credit), stream=stream)
        return None

    def _pop_stream(self, now: float) -> Outgoing | None:
        if not self._schedule:
            return None
        start, _, share = heapq.heappop(self._schedule)
        self._virtual_time = start
        # Still marked as scheduled: settling a result may put more into this very queue.
        outgoing = share.queue.take(now)
        share.finish = start + len(outgoing.data) / share.queue.weight
        share.is_scheduled = False
        if outgoing.kind is OutgoingKind.CLOSED:
            del self._shares[share.queue.stream]
            self._credits.pop(share.queue.stream, None)
        else:
            self._activate(share)
        return outgoing

    def _activate(self, share: _Share) -> None:
        if share.is_scheduled or len(share.queue) == 0:
            return
        share.is_scheduled = True
        self._num_scheduled += 1
        start = max(self._virtual_time, share.finish)
        heapq.heappush(self._schedule, (start, self._num_scheduled, share))

    def _settle(self, stream: int, seq: int, delivered: bool) -> None:
        self.on_settled(stream, seq, delivered)

    @property
    def _num_answers(self) -> int:
        return sum(len(share.queue) for share in self._shares.values())

    def _make_room(self) -> None:
        while self._is_over(self._max_bytes):
            queues = (share.queue for share in self._shares.values())
            victim = max(queues, key=lambda queue: queue.droppable_bytes, default=None)
            if victim is None or victim.droppable_bytes == 0:
                break
            victim.give_up_oldest()
        if self._is_over(KEPT_FACTOR * self._max_bytes):
            raise OutboxFull(f"{self.size_bytes} bytes wait for a slow reader")

    def _is_over(self, limit_bytes: int) -> bool:
        # A single answer passes whatever its size: no reader is slow enough to deserve that.
        return self.size_bytes > limit_bytes and self._num_answers > 1
