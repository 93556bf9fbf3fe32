"""What one connection has yet to send, and in which order it leaves."""

from __future__ import annotations

import heapq
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field

from gateway.stream.entries import (
    DropRange,
    Entry,
    Outgoing,
    OutgoingKind,
    ResultGroup,
    StreamText,
    drop_of,
)
from gateway.wire.codec import encode
from gateway.wire.messages import Credit, Drop, ServerMessage

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
class _Queue:
    """One stream's share: entries in order, and the group that has been begun."""

    stream: int
    weight: float
    keeps_late: bool  # lossless: results are never given up
    entries: deque[Entry] = field(default_factory=deque)
    begun: ResultGroup | None = None
    pieces: deque[bytes] = field(default_factory=deque)  # of ``begun``, not yet popped
    droppable_bytes: int = 0  # results in ``entries``, unless ``keeps_late``
    finish: float = 0.0  # virtual time at which its share of the past is used up
    is_scheduled: bool = False

    @property
    def is_empty(self) -> bool:
        return not self.entries and self.begun is None


class Outbox:
    """Bounded and pure: chooses each message at the moment when the writer can send it.

    Order: messages about the connection and credit first; then the streams, sharing the bytes by
    weight (start-time fair queueing); inside a stream first in, first out. One message at a time
    leaves, so control and other streams pass between the pieces of a large attachment; a group
    once begun is finished.

    A result is decided when its first message leaves: ``on_settled(stream, seq, delivered)`` tells
    it, and ``on_popped`` every message that leaves. Past its deadline it leaves as ``drop(late)``, unless the stream is lossless. Drops of the
    same reason merge while they wait.

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
        self._credits: dict[int, Credit] = {}  # the newest per stream
        self._queues: dict[int, _Queue] = {}
        self._schedule: list[tuple[float, int, _Queue]] = []  # heap by virtual start
        self._virtual_time = 0.0
        self._num_scheduled = 0  # ties leave in the order in which they were scheduled
        self._size_bytes = 0

    @property
    def size_bytes(self) -> int:
        """Bytes waiting, without what has been popped."""
        return self._size_bytes

    @property
    def is_empty(self) -> bool:
        streams_are_empty = all(queue.is_empty for queue in self._queues.values())
        return not self._control and not self._credits and streams_are_empty

    def open_stream(self, stream: int, *, weight: float, keeps_late: bool) -> None:
        """Make room for a stream; it is forgotten when its ``closed`` is popped.

        Raises:
            ValueError: it is open already.
        """
        if stream in self._queues:
            raise ValueError(f"stream {stream} is open")
        self._queues[stream] = _Queue(stream, weight, keeps_late)

    def put_control(self, message: ServerMessage) -> None:
        """Queue a message about the connection.

        Raises:
            OutboxFull: too many of them wait, or too many bytes.
        """
        if isinstance(message, Credit):
            self._put_credit(message)
        else:
            if len(self._control) >= self._max_control:
                raise OutboxFull(f"{self._max_control} control messages wait")
            data = encode(message)
            self._control.append(data)
            self._size_bytes += len(data)
            self._make_room()
        self.on_wake()

    def put(self, stream: int, entry: Entry) -> None:
        """Queue an entry of an open stream.

        Raises:
            OutboxFull: no room, and nothing that may be given up.
        """
        queue = self._queues[stream]
        last = queue.entries[-1] if queue.entries else None
        if isinstance(entry, DropRange) and isinstance(last, DropRange):
            merged = last.merge(entry)
            if merged is not None:
                queue.entries[-1] = merged
                return
        queue.entries.append(entry)
        self._account(queue, entry, 1)
        self._activate(queue)
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
        self._credits.clear()
        self._queues.clear()
        self._schedule.clear()
        self._size_bytes = 0

    def check_integrity(self) -> None:
        """Assert the sums; tests call it after every step."""
        total = sum(map(len, self._control))
        for queue in self._queues.values():
            results = [e.size_bytes for e in queue.entries if isinstance(e, ResultGroup)]
            assert queue.droppable_bytes == (0 if queue.keeps_late else sum(results))
            total += sum(entry.size_bytes for entry in queue.entries)
            total += sum(map(len, queue.pieces))
            total += len(queue.begun.text) if queue.begun is not None else 0
            assert queue.is_scheduled or queue.is_empty
        assert total == self._size_bytes, (total, self._size_bytes)
        assert len(self._schedule) == sum(q.is_scheduled for q in self._queues.values())

    # --- taking

    def _pop_control(self) -> Outgoing | None:
        if self._control:
            data = self._control.popleft()
            self._size_bytes -= len(data)
            return Outgoing(kind=OutgoingKind.CONTROL, data=data)
        if self._credits:
            stream = next(iter(self._credits))
            credit = self._credits.pop(stream)
            return Outgoing(kind=OutgoingKind.CONTROL, data=encode(credit), stream=stream)
        return None

    def _pop_stream(self, now: float) -> Outgoing | None:
        if not self._schedule:
            return None
        start, _, queue = heapq.heappop(self._schedule)
        self._virtual_time = max(self._virtual_time, start)
        # Still marked as scheduled: settling a result may put more into this very queue.
        outgoing = self._take(queue, now)
        queue.finish = start + len(outgoing.data) / queue.weight
        queue.is_scheduled = False
        if outgoing.kind is OutgoingKind.CLOSED:
            del self._queues[queue.stream]
            self._credits.pop(queue.stream, None)
        elif not queue.is_empty:
            self._activate(queue)
        return outgoing

    def _take(self, queue: _Queue, now: float) -> Outgoing:
        if queue.begun is not None:
            return self._next_of_group(queue, queue.begun)
        entry = self._pop_entry(queue)
        if isinstance(entry, StreamText):
            return _text_outgoing(queue.stream, entry)
        if isinstance(entry, ResultGroup) and not self._is_late(queue, entry, now):
            queue.begun = entry
            queue.pieces.extend(entry.pieces)
            self._size_bytes += entry.size_bytes
            outgoing = self._next_of_group(queue, entry)
            self.on_settled(queue.stream, entry.seq, True)
            return outgoing
        return self._take_drops(queue, entry, now)

    def _next_of_group(self, queue: _Queue, group: ResultGroup) -> Outgoing:
        if queue.pieces:
            piece = queue.pieces.popleft()
            self._size_bytes -= len(piece)
            return Outgoing(
                kind=OutgoingKind.ATTACHMENT,
                data=piece,
                is_text=False,
                stream=queue.stream,
                seq=group.seq,
                deadline=group.deadline,
            )
        queue.begun = None
        self._size_bytes -= len(group.text)
        return Outgoing(
            kind=OutgoingKind.RESULT,
            data=group.text,
            stream=queue.stream,
            seq=group.seq,
            deadline=group.deadline,
            num_frames=1,
            credit_bytes=group.credit_bytes,
        )

    def _take_drops(self, queue: _Queue, entry: ResultGroup | DropRange, now: float) -> Outgoing:
        """The entry as a drop, together with what follows and may be told in the same breath."""
        drops = self._as_drop(queue, entry)
        while queue.entries:
            follower = queue.entries[0]
            if isinstance(follower, StreamText) or (
                isinstance(follower, ResultGroup) and not self._is_late(queue, follower, now)
            ):
                break
            later = follower if isinstance(follower, DropRange) else drop_of(follower)
            merged = drops.merge(later)
            if merged is None:
                break
            self._as_drop(queue, self._pop_entry(queue))
            drops = merged
        return _drop_outgoing(queue.stream, drops)

    def _as_drop(self, queue: _Queue, entry: Entry) -> DropRange:
        if isinstance(entry, DropRange):
            return entry
        assert isinstance(entry, ResultGroup)
        self.on_settled(queue.stream, entry.seq, False)
        return drop_of(entry)

    def _pop_entry(self, queue: _Queue) -> Entry:
        entry = queue.entries.popleft()
        self._account(queue, entry, -1)
        return entry

    def _is_late(self, queue: _Queue, group: ResultGroup, now: float) -> bool:
        return not queue.keeps_late and group.deadline is not None and now > group.deadline

    # --- bookkeeping

    def _put_credit(self, credit: Credit) -> None:
        queue = self._queues.get(credit.stream)
        if queue is not None:  # else its ``closed`` has gone out
            self._credits[credit.stream] = credit

    def _activate(self, queue: _Queue) -> None:
        if queue.is_scheduled:
            return
        queue.is_scheduled = True
        self._num_scheduled += 1
        start = max(self._virtual_time, queue.finish)
        heapq.heappush(self._schedule, (start, self._num_scheduled, queue))

    def _account(self, queue: _Queue, entry: Entry, sign: int) -> None:
        size_bytes = sign * entry.size_bytes
        self._size_bytes += size_bytes
        if isinstance(entry, ResultGroup) and not queue.keeps_late:
            queue.droppable_bytes += size_bytes

    def _make_room(self) -> None:
        while self._size_bytes > self._max_bytes and not self._holds_one_answer:
            victim = max(self._queues.values(), key=lambda q: q.droppable_bytes, default=None)
            if victim is None or victim.droppable_bytes == 0:
                break
            self._give_up_oldest(victim)
        if self._size_bytes > KEPT_FACTOR * self._max_bytes and not self._holds_one_answer:
            raise OutboxFull(f"{self._size_bytes} bytes wait for a slow reader")

    def _give_up_oldest(self, queue: _Queue) -> None:
        for index, entry in enumerate(queue.entries):
            if isinstance(entry, ResultGroup):
                drop = drop_of(entry)
                queue.entries[index] = drop
                self._account(queue, entry, -1)
                self._account(queue, drop, 1)
                self.on_settled(queue.stream, entry.seq, False)
                return

    @property
    def _holds_one_answer(self) -> bool:
        """Whether a single answer is all that waits: then its size alone must not lose it."""
        return sum(len(q.entries) + (q.begun is not None) for q in self._queues.values()) <= 1


def _text_outgoing(stream: int, entry: StreamText) -> Outgoing:
    return Outgoing(
        kind=entry.kind,
        data=entry.text,
        stream=stream,
        seq=entry.seq,
        num_frames=0 if entry.seq is None else 1,
        credit_bytes=entry.credit_bytes,
    )


def _drop_outgoing(stream: int, drops: DropRange) -> Outgoing:
    message = Drop(
        stream=stream,
        reason=drops.reason.value,
        first=drops.first_seq,
        last=drops.last_seq,
        count=drops.num_frames,
    )
    return Outgoing(
        kind=OutgoingKind.DROP,
        data=encode(message),
        stream=stream,
        seq=drops.last_seq,
        num_frames=drops.num_frames,
        credit_bytes=drops.credit_bytes,
    )
