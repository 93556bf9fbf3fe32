"""One client's conversation: from ``hello`` to the last ``closed``."""

from __future__ import annotations

import logging
import secrets
from collections.abc import Callable, Iterator, Mapping

from msgspec import UNSET

from engine.base import Engine
from engine.types import DropReason
from gateway.config_sections import LimitsConfig, StreamsConfig, TextConfig
from gateway.errors import (
    CloseCode,
    ConnectionFault,
    ProblemKind,
    RequestProblem,
    error_message,
)
from gateway.session.clock import Clock
from gateway.session.commands import StreamCommands
from gateway.session.deliver import Deliver
from gateway.session.ingest import Ingest
from gateway.session.prompts import Moment, Prompts
from gateway.session.registry import SessionRegistry
from gateway.session.stream_table import StreamTable
from gateway.session.text_stream import TextStream
from gateway.session.watch import Watch
from gateway.stream.entries import Outgoing
from gateway.stream.outbox import Outbox
from gateway.stream.tally import Tally
from gateway.wire.codec import (
    MAX_BINARY_BYTES,
    ProtocolError,
    UnexpectedMessage,
    UnknownType,
    decode_binary,
    decode_client,
)
from gateway.wire.messages import (
    ClientMessage,
    ClientPong,
    GoAway,
    Hello,
    Limits,
    Open,
    Ping,
    ResumedStream,
    ServerPong,
    Welcome,
)
from gateway.wire.protocol import (
    CONNECTION,
    CONNECTION_EVENTS,
    ConnectionEvent,
    ConnectionState,
    advance,
)

logger = logging.getLogger(__name__)

Authenticate = Callable[[str], str | None]  # token -> principal


class Session:
    """Serves one connection; every call returns at once and runs on the loop's thread.

    The connection's reader calls ``receive_text`` and ``receive_binary``; its writer takes from
    the outbox and calls ``handle_sent``. What ends the connection is raised from ``receive_…`` and
    told to ``on_fault`` from everywhere else; either way the caller then calls ``close``.
    ``on_fault`` may be called inside any of these calls, once. Streams are bounded by
    ``limits.max_streams``, their frames by credit, prompts by ``limits.max_prompts``, everything
    that waits by the outbox.
    """

    def __init__(
        self,
        *,
        engine: Engine,
        limits: LimitsConfig,
        streams: StreamsConfig,
        text: TextConfig,
        outbox: Outbox,
        clock: Clock,
        registry: SessionRegistry,
        authenticate: Authenticate,
        on_fault: Callable[[ConnectionFault], None],
        principal: str | None = None,
        kinds: Mapping[str, str] | None = None,
    ) -> None:
        """``principal`` is None when ``hello`` has to say who the client is; ``kinds`` are those of
        the models, as far as they are known."""
        self.id = secrets.token_hex(8)
        self.principal = principal
        self._engine = engine
        self._limits = limits
        self._outbox = outbox
        self._clock = clock
        self._registry = registry
        self._authenticate = authenticate
        self._on_fault = on_fault
        self._is_failed = False
        self._state = ConnectionState.AWAITING_HELLO
        self._started_at = clock.now()
        self._streams = StreamTable(limits.max_streams)
        self._deliver = Deliver(
            outbox=outbox,
            streams=self._streams,
            now=clock.now,
            on_fault=self._fail,
            on_latency=registry.observe_latency,
        )
        self._ingest = Ingest(limits=limits, streams=self._streams, deliver=self._deliver)
        self._prompts = Prompts(
            engine=engine,
            limits=limits,
            text=text,
            streams=self._streams,
            deliver=self._deliver,
            registry=registry,
        )
        self._commands = StreamCommands(
            engine=engine,
            limits=limits,
            defaults=streams,
            text=text,
            kinds=kinds or {},
            streams=self._streams,
            registry=registry,
            deliver=self._deliver,
            ingest=self._ingest,
            prompts=self._prompts,
        )
        self._watch = Watch(
            limits=limits,
            clock=clock,
            streams=self._streams,
            deliver=self._deliver,
            ingest=self._ingest,
            on_fault=self._fail,
        )

    @property
    def state(self) -> ConnectionState:
        return self._state

    @property
    def num_streams(self) -> int:
        return len(self._streams)

    @property
    def outbox_bytes(self) -> int:
        return self._outbox.size_bytes

    @property
    def is_idle(self) -> bool:
        """Whether everything accepted is answered and every answer written."""
        return self._deliver.is_idle

    def tallies(self) -> Iterator[tuple[str, Tally]]:
        """Model and tally of every stream that is not over."""
        for stream in self._streams:
            yield stream.model, stream.tally

    def start(self) -> None:
        """Register and wait for ``hello``.

        Raises:
            RequestProblem: OVERLOADED, there are too many sessions.
        """
        self._registry.add(self)
        self._watch.await_hello()

    def receive_text(self, data: bytes) -> None:
        """Handle one control message; raises ConnectionFault."""
        if self._state is ConnectionState.CLOSED:
            return
        try:
            self._handle(decode_client(data))
        except ProtocolError as error:
            self._handle_protocol_error(error)

    def receive_binary(self, data: bytes) -> None:
        """Handle one frame, or a piece of one; raises ConnectionFault."""
        if self._state is ConnectionState.CLOSED:
            return
        try:
            message = decode_binary(data)
            self._advance(ConnectionEvent.STREAM)
            self._ingest.receive(message, self._clock.now(), is_draining=self._is_draining)
        except ProtocolError as error:
            self._handle_protocol_error(error)

    def handle_sent(self, outgoing: Outgoing) -> None:
        """The writer has written what it popped from the outbox."""
        if self._state is not ConnectionState.CLOSED:
            self._deliver.handle_sent(outgoing)

    def drain(self, deadline_ms: int) -> None:
        """Ask the client to go elsewhere: nothing new is taken, what is accepted is answered.

        ``is_idle`` tells when that is done.
        """
        if self._state in (ConnectionState.READY, ConnectionState.DRAINING):
            self._advance(ConnectionEvent.GOAWAY)
            self._deliver.tell(GoAway(deadline_ms=deadline_ms))

    def give_up(self) -> None:
        """The time for draining is up: tell what is unanswered as lost to the shutdown.

        ``is_idle`` tells when that has been sent. Idempotent; nothing while not draining.
        """
        if not self._is_draining:
            return
        for stream in self._streams:
            if isinstance(stream, TextStream):
                self._prompts.give_up(stream, DropReason.SHUTDOWN)
            else:
                self._deliver.give_up(stream, DropReason.SHUTDOWN)

    def close(self, reason: str) -> None:
        """The connection is over: free everything, count what could not be told; idempotent."""
        if self._state is ConnectionState.CLOSED:
            return
        drop_reason = DropReason.SHUTDOWN if self._is_draining else DropReason.DISCONNECTED
        self._advance(ConnectionEvent.CLOSE)
        self._watch.stop()
        untold = 0
        for stream in self._streams:
            untold += stream.tally.in_flight
            if isinstance(stream, TextStream):
                self._prompts.abandon(stream, drop_reason)
            else:
                self._deliver.abandon(stream, drop_reason)
            self._streams.remove(stream.id)
        self._outbox.clear()
        self._registry.remove(self.id)
        lasted_s = self._clock.now() - self._started_at
        logger.info(
            "session %s closed: %s, %d answers untold, %.1f s", self.id, reason, untold, lasted_s
        )

    @property
    def _is_draining(self) -> bool:
        return self._state is ConnectionState.DRAINING

    def _handle(self, message: ClientMessage) -> None:
        if isinstance(message, Open) and self._is_draining:
            self._commands.open(message, is_draining=True)
            return
        self._advance(CONNECTION_EVENTS[type(message)])
        match message:
            case Hello():
                self._hello(message)
            case Open():
                self._commands.open(message, is_draining=False)
            case Ping(t=t):
                self._deliver.tell(ServerPong(t=t, now_us=self._clock.now_us()))
            case ClientPong(t=t):
                self._watch.receive_pong(t)
            case _:
                moment = Moment(
                    now=self._clock.now(),
                    is_draining=self._is_draining,
                    tenant=self.principal or "",
                )
                self._commands.handle(message, moment)

    def _hello(self, message: Hello) -> None:
        if self.principal is None and message.token:
            self.principal = self._authenticate(message.token)
        if self.principal is None:
            raise ConnectionFault(CloseCode.AUTH, ProblemKind.UNAUTHORIZED, "a key is required")
        self._deliver.tell(self._welcome(message))
        self._watch.welcome()
        logger.info("session %s opened: %s", self.id, self.principal)

    def _welcome(self, message: Hello) -> Welcome:
        asked = [] if message.resume is None else message.resume.streams
        # Nothing outlives its connection: every stream starts afresh.
        resumed = [
            ResumedStream(stream=entry.stream, recovered=False, next_seq=0, received_seq=-1)
            for entry in asked[: self._limits.max_streams]
        ]
        return Welcome(
            session=self.id,
            epoch=self._registry.epoch,
            resume_token=secrets.token_urlsafe(24),
            resume_window_s=0.0,
            limits=_announced(self._limits),
            models=sorted({model.model for model in self._engine.statistics().models}),
            now_us=self._clock.now_us(),
            resumed=UNSET if message.resume is None else resumed,
        )

    def _advance(self, event: ConnectionEvent) -> None:
        self._state = advance(CONNECTION, self._state, event)

    def _handle_protocol_error(self, error: ProtocolError) -> None:
        """Tell what is harmless; raise the rest."""
        kind = ProblemKind.INVALID_MESSAGE
        if isinstance(error, UnknownType):
            kind = ProblemKind.UNKNOWN_TYPE
        elif isinstance(error, UnexpectedMessage):
            kind = ProblemKind.UNEXPECTED_MESSAGE
        if error.close_code is not None:
            raise ConnectionFault(CloseCode(error.close_code), kind, error.detail) from None
        if self._state is ConnectionState.AWAITING_HELLO:
            detail = f"hello comes first: {error.detail}"
            raise ConnectionFault(CloseCode.PROTOCOL, kind, detail) from None
        self._deliver.tell(error_message(RequestProblem(kind, error.detail)))

    def _fail(self, fault: ConnectionFault) -> None:
        if not self._is_failed and self._state is not ConnectionState.CLOSED:
            self._is_failed = True
            self._on_fault(fault)


def _announced(limits: LimitsConfig) -> Limits:
    return Limits(
        max_message_bytes=MAX_BINARY_BYTES,
        max_frame_bytes=limits.max_frame_bytes,
        max_streams=limits.max_streams,
        max_width=limits.max_width,
        max_height=limits.max_height,
        max_pixels=limits.max_pixels,
        max_prompts=limits.max_prompts,
        max_messages_per_s=limits.max_messages_per_s,
        ack_deadline_s=limits.ack_deadline_s,
    )
