"""What one connection has yet to send, and in which order it leaves."""

from __future__ import annotations

import heapq
from collections import deque
from collections.abc import Callable
from functools import partial

from engine.types import DropReason
from gateway.stream.byte_budget import ByteMeter
from gateway.stream.entries import CLOSED, Entry, Keep, Outgoing, OutgoingKind
from gateway.stream.output_budget import OutputBudget
from gateway.stream.stream_queue import StreamQueue
from gateway.wire.codec import encode
from gateway.wire.messages import Credit, ServerMessage

MAX_CONTROL = 256
# Lossless results arrive a batch at a time and credit is their brake; a healthy reader must not
# lose its connection because a batch of large ones was finished at once.
KEPT_FACTOR = 4
# A result that is worth a look at whether the reader has taken the one before.
LARGE_BYTES = 8 * 1024


class OutboxFull(Exception):
    """The client reads too slowly for what must not be dropped."""


def ignore() -> None:
    """Until somebody has said what is to be done."""


def ignore_settled(stream: int, seq: int, reason: DropReason | None) -> None:
    """While there is no session that counts."""


def always(now: float) -> bool:
    """While nobody knows of a reason to wait."""
    return True


def refuse(outgoing: Outgoing) -> bool:
    """While there is no writer that could send it."""
    return False


def ignore_popped(outgoing: Outgoing) -> None:
    """While there is no session that counts."""


_Turn = tuple[float, int, StreamQueue]  # virtual start, number, whose


class Outbox:
    """Bounded and pure: chooses each message at the moment when the writer can send it.

    Order: messages about the connection and credit first; then the streams, sharing the bytes by
    weight (start-time fair queueing); inside a stream first in, first out. One message at a time
    leaves, so control and other streams pass between the pieces of a large attachment. A large
    result that a newer one may replace begins only when ``may_begin(now)``.

    A result is decided when its first message leaves: ``on_settled(stream, seq, reason)`` tells it
    (None: it leaves as it is), and ``on_popped`` every message that completes receipts of frames.
    Past its deadline a result leaves as ``drop(late)``, and as ``drop(superseded)`` when the reader
    lags and a newer one waits, as far as the stream's ``Keep`` lets it. Drops of one reason merge
    while they wait.

    Bounds: over ``max_bytes``, the oldest waiting results of the stream with most bytes become
    ``drop(late)``. What may not be given up (lossless results, errors) may grow to ``KEPT_FACTOR``
    times that, then ``OutboxFull``, as beyond ``max_control`` messages about the connection. One
    answer is always let in, however large. How many answers a stream can have waiting is bounded
    by its credit. When all connections together hold more than ``budget``, the one with most gives
    up every result that waits, or else is lost: ``on_overflow``.
    """

    # On every token's path: see ``gateway.stream.stream_queue.StreamQueue``.
    __slots__ = (
        "_budget",
        "_control",
        "_control_bytes",
        "_credits",
        "_max_bytes",
        "_max_control",
        "_meter",
        "_num_scheduled",
        "_num_waiting",
        "_queues",
        "_schedule",
        "_virtual_time",
        "may_begin",
        "on_overflow",
        "on_popped",
        "on_settled",
        "on_wake",
        "try_send",
    )

    def __init__(
        self,
        *,
        max_bytes: int,
        max_control: int = MAX_CONTROL,
        budget: OutputBudget | None = None,
    ) -> None:
        self.on_wake: Callable[[], None] = ignore
        self.on_overflow: Callable[[], None] = ignore
        self.on_settled: Callable[[int, int, DropReason | None], None] = ignore_settled
        self.on_popped: Callable[[Outgoing], None] = ignore_popped
        self.may_begin: Callable[[float], bool] = always
        self.try_send: Callable[[Outgoing], bool] = refuse
        self._max_bytes = max_bytes
        self._max_control = max_control
        self._budget = OutputBudget() if budget is None else budget
        self._meter = ByteMeter(self._budget.meter)
        self._control: deque[bytes] = deque()
        self._control_bytes = 0
        self._credits: dict[int, Credit] = {}  # the newest per stream
        self._queues: dict[int, StreamQueue] = {}
        self._schedule: list[_Turn] = []  # a heap
        self._virtual_time = 0.0
        self._num_waiting = 0  # streams, control messages and grants
        self._num_scheduled = 0  # ties leave in the order in which they were scheduled
        self._budget.join(self)

    @property
    def size_bytes(self) -> int:
        """Bytes waiting, without what has been popped and grants of credit."""
        return self._meter.used

    @property
    def is_empty(self) -> bool:
        return self._num_waiting == 0

    def num_waiting(self, stream: int) -> int:
        """Entries of an open stream."""
        return len(self._queues[stream])

    def open_stream(self, stream: int, *, weight: float, keep: Keep) -> None:
        """Make room for a stream; it is forgotten when its ``closed`` is popped.

        Raises:
            ValueError: it is open already.
        """
        if stream in self._queues:
            raise ValueError(f"stream {stream} is open")
        settle = partial(self._settle, stream)
        self._queues[stream] = StreamQueue(stream, settle, self._meter, weight=weight, keep=keep)

    def put_control(self, message: ServerMessage) -> None:
        """Queue a message about the connection, or a grant, which replaces an older one.

        Raises:
            OutboxFull: too many of them wait, or too many bytes.
        """
        if isinstance(message, Credit):
            if message.stream in self._queues:  # else its ``closed`` has gone out
                self._num_waiting += message.stream not in self._credits
                self._credits[message.stream] = message
        elif len(self._control) >= self._max_control:
            raise OutboxFull(f"{self._max_control} control messages wait for a slow reader")
        else:
            data = encode(message)
            self._control.append(data)
            self._num_waiting += 1
            self._count_control(len(data))
            self._make_room()
        self.on_wake()

    def put(self, stream: int, entry: Entry) -> None:
        """Queue an entry of an open stream.

        Raises:
            OutboxFull: no room, and nothing that may be given up.
        """
        queue = self._queues[stream]
        queue.put(entry)
        if not queue.is_scheduled:
            self._activate(queue)
        if self._meter.used > self._max_bytes or self._budget.is_over:
            self._make_room()
        self.on_wake()

    def pass_by(self, outgoing: Outgoing) -> bool:
        """Whether the writer sent it at once, because nothing waits that it would overtake; else it
        is for ``put``. It is complete by itself, and its sender settles it."""
        return self._num_waiting == 0 and self.try_send(outgoing)

    def pop(self, now: float) -> Outgoing | None:
        """The next message, or None when nothing waits but what may not begin."""
        if self._control or self._credits:
            outgoing = self._pop_control()
        elif not self._schedule:
            return None
        elif self._schedule[0][2].droppable_bytes <= LARGE_BYTES:  # as all tokens
            outgoing = self._pop_stream(heapq.heappop(self._schedule), now)
        else:
            turn = self._next_turn(now)
            if turn is None:
                return None
            outgoing = self._pop_stream(turn, now)
        if outgoing.num_frames:
            self.on_popped(outgoing)
        return outgoing

    def clear(self) -> None:
        """Forget everything, undecided: the connection is gone."""
        self._budget.leave(self)
        self._meter.leave()
        self._meter = ByteMeter()
        self._control.clear()
        self._control_bytes = 0
        self._credits.clear()
        self._queues.clear()
        self._schedule.clear()
        self._num_waiting = 0

    def relieve(self) -> None:
        """Make room for other connections: give up what waits and may be, or the connection."""
        droppable = [queue for queue in self._queues.values() if queue.droppable_bytes]
        for queue in droppable:
            while queue.droppable_bytes:
                queue.give_up_oldest()
        if not droppable:
            self._budget.leave(self)
            self._meter.leave()
            self.on_overflow()

    def check_integrity(self) -> None:
        """Assert the sums; tests call it after every step."""
        assert self._control_bytes == sum(map(len, self._control))
        streams_bytes = sum(queue.size_bytes for queue in self._queues.values())
        assert self._meter.used == self._control_bytes + streams_bytes
        for queue in self._queues.values():
            queue.check_integrity()
            assert queue.is_scheduled == (len(queue) > 0)
        assert len(self._schedule) == sum(queue.is_scheduled for queue in self._queues.values())
        assert self._credits.keys() <= self._queues.keys()
        num_waiting = len(self._schedule) + len(self._control) + len(self._credits)
        assert self._num_waiting == num_waiting

    def _pop_control(self) -> Outgoing:
        self._num_waiting -= 1
        if self._control:
            data = self._control.popleft()
            self._count_control(-len(data))
            return Outgoing(kind=OutgoingKind.CONTROL, data=data)
        stream = next(iter(self._credits))
        credit = self._credits.pop(stream)
        return Outgoing(kind=OutgoingKind.CONTROL, data=encode(credit), stream=stream)

    def _next_turn(self, now: float) -> _Turn | None:
        """Take the first stream off the schedule that has something to send now."""
        schedule, turn = self._schedule, None
        held: list[_Turn] = []
        while schedule and turn is None:
            turn = heapq.heappop(schedule)
            if turn[2].droppable_bytes > LARGE_BYTES and self._has_to_wait(turn[2], now):
                held.append(turn)
                turn = None
        for waiting in held:
            heapq.heappush(schedule, waiting)
        return turn

    def _has_to_wait(self, queue: StreamQueue, now: float) -> bool:
        return queue.next_newest_bytes(now) > LARGE_BYTES and not self.may_begin(now)

    def _pop_stream(self, turn: _Turn, now: float) -> Outgoing:
        start, _, queue = turn
        self._virtual_time = start
        self._num_waiting -= 1
        # Still marked as scheduled: settling a result may put more into this very queue.
        outgoing = queue.take(now)
        queue.finish = start + len(outgoing.data) / queue.weight
        queue.is_scheduled = False
        if outgoing.kind is CLOSED:
            del self._queues[queue.stream]
            if self._credits.pop(queue.stream, None) is not None:
                self._num_waiting -= 1
        elif queue.size_bytes > 0:
            self._activate(queue)
        return outgoing

    def _activate(self, queue: StreamQueue) -> None:
        queue.is_scheduled = True
        self._num_waiting += 1
        self._num_scheduled += 1
        start = self._virtual_time if self._virtual_time > queue.finish else queue.finish
        heapq.heappush(self._schedule, (start, self._num_scheduled, queue))

    def _count_control(self, num_bytes: int) -> None:
        self._control_bytes += num_bytes
        self._meter.add(num_bytes)

    def _settle(self, stream: int, seq: int, reason: DropReason | None) -> None:
        self.on_settled(stream, seq, reason)

    @property
    def _num_answers(self) -> int:
        return sum(map(len, self._queues.values()))

    def _make_room(self) -> None:
        while self._is_over(self._max_bytes):
            queues = self._queues.values()
            victim = max(queues, key=lambda queue: queue.droppable_bytes, default=None)
            if victim is None or victim.droppable_bytes == 0:
                break
            victim.give_up_oldest()
        if self._budget.is_over:
            self._budget.make_room()
        if self._is_over(KEPT_FACTOR * self._max_bytes):
            raise OutboxFull(f"{self.size_bytes} bytes wait for a slow reader")

    def _is_over(self, limit_bytes: int) -> bool:
        # A single answer passes whatever its size: no reader is slow enough to deserve that.
        return self.size_bytes > limit_bytes and self._num_answers > 1
