"""What a session tells its client, while there is a connection that can tell it."""

from __future__ import annotations

from collections.abc import Callable

from gateway.errors import CloseCode, ConnectionFault, ProblemKind
from gateway.session.clock import Clock
from gateway.session.stream_table import AnyStream
from gateway.session.text_stream import TextStream
from gateway.stream.entries import Entry, Outgoing
from gateway.stream.outbox import Outbox, OutboxFull
from gateway.wire.messages import ServerMessage


def _ignore_logged(stream: TextStream, num_bytes: int) -> None:
    """Until somebody counts."""


class Telling:
    """Puts messages into the outbox of the connection; without one they are told to nobody.

    Events of token streams are kept in their logs too, for a client that comes back. A reader that
    is too slow for what must not be dropped ends its connection: ``on_fault``.
    """

    # On every token's path: see ``gateway.stream.stream_queue.StreamQueue``.
    __slots__ = (
        "_now",
        "_on_fault",
        "holding",
        "on_logged",
        "outbox",
    )

    def __init__(
        self, outbox: Outbox, *, clock: Clock, on_fault: Callable[[ConnectionFault], None]
    ) -> None:
        self.outbox: Outbox | None = outbox  # while there is a connection
        # Told of each event that is kept while nobody can be told, and by how much its log grew.
        self.on_logged: Callable[[TextStream, int], None] = _ignore_logged
        self.holding: dict[int, Callable[[Entry], None]] = {}  # by streams told what they missed
        self._now = clock.now
        self._on_fault = on_fault

    @property
    def is_attached(self) -> bool:
        """Whether there is a connection."""
        return self.outbox is not None

    @property
    def is_done(self) -> bool:
        """Whether everything told is with the writer."""
        return (self.outbox is None or self.outbox.is_empty) and not self.holding

    @property
    def waiting_bytes(self) -> int:
        """What waits for the writer."""
        return 0 if self.outbox is None else self.outbox.size_bytes

    def num_waiting(self, stream: AnyStream) -> int:
        """Messages of an open stream that wait for the writer."""
        return 0 if self.outbox is None else self.outbox.num_waiting(stream.id)

    def tell(self, message: ServerMessage) -> None:
        """Queue a message about the connection."""
        if self.outbox is None:
            return
        try:
            self.outbox.put_control(message)
        except OutboxFull as error:
            self._fail_slow_reader(str(error))

    def put(self, stream: AnyStream, entry: Entry) -> None:
        """Queue a message of an open stream."""
        if self.outbox is None:
            return
        if self.holding and (hold := self.holding.get(stream.id)):
            hold(entry)
            return
        try:
            self.outbox.put(stream.id, entry)
        except OutboxFull as error:
            self._fail_slow_reader(str(error))

    def put_event(self, stream: TextStream, event: Outgoing) -> None:
        """Send or queue an event of an open stream, which is kept until it is acknowledged."""
        num_bytes, outbox = stream.log.append(event), self.outbox
        if outbox is None:
            self.on_logged(stream, num_bytes)
        elif not self.holding and event.seq is not None and outbox.pass_by(event):
            stream.note_sent(event.seq, self._now())
        else:
            self.put(stream, event)

    def fail_for_text(self, num_chars: int) -> None:
        """More text of one answer waits than any reader may leave unread."""
        self._fail_slow_reader(f"{num_chars} characters wait for a slow reader")

    def fail_for_others(self) -> None:
        """The process needs the room that this connection takes."""
        self._fail_slow_reader("too many bytes wait for slow readers, most of them here")

    def _fail_slow_reader(self, detail: str) -> None:
        fault = ConnectionFault(CloseCode.SLOW_READER, ProblemKind.SLOW_READER, detail)
        self._on_fault(fault)
