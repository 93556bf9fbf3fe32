"""One client's conversation: from ``hello`` to the last ``closed``."""

from __future__ import annotations

import logging
import secrets
from collections.abc import Callable, Iterator, Mapping
from functools import partial

from engine.base import Engine
from engine.types import DropReason
from gateway.config_sections import LimitsConfig, StreamsConfig, TextConfig
from gateway.errors import CloseCode, ConnectionFault, ProblemKind, RequestProblem, error_message
from gateway.session.attachment import Attachment
from gateway.session.clock import Clock, Timer
from gateway.session.commands import StreamCommands
from gateway.session.deliver import Deliver
from gateway.session.greeting import Greeter
from gateway.session.ingest import Ingest
from gateway.session.moment import Moment
from gateway.session.pacing import Pacing
from gateway.session.prompts import Prompts
from gateway.session.registry import SessionRegistry
from gateway.session.resume import StreamKeeper, not_recovered
from gateway.session.stream_table import MAX_FINISHED, StreamTable
from gateway.session.telling import Telling
from gateway.session.text_stream import TextStream
from gateway.session.watch import Watch
from gateway.stream.entries import Outgoing
from gateway.stream.network_estimate import PathSample
from gateway.stream.network_state import NetworkState
from gateway.stream.outbox import Outbox
from gateway.stream.tally import Tally
from gateway.wire.codec import (
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
    Open,
    Ping,
    ResumeRequest,
    ServerEvent,
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

# Looking them up takes 0.2 us (Python 3.11), for every message.
_CLOSED, _DRAINING = ConnectionState.CLOSED, ConnectionState.DRAINING

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
        pacing: Pacing,
        authenticate: Authenticate,
        on_fault: Callable[[ConnectionFault], None],
        principal: str | None = None,
        kinds: Mapping[str, str] | None = None,
    ) -> None:
        """``principal`` is None when ``hello`` has to say who the client is; ``kinds`` are those of
        the models, as far as they are known."""
        self.id = secrets.token_hex(8)
        self.principal = principal
        self._limits = limits
        self._clock = clock
        self._registry = registry
        self._authenticate = authenticate
        self._attachment = Attachment(outbox, on_fault)
        self._expiry: Timer | None = None  # while detached
        self._is_token_new = False  # until the client has shown that it has it
        self._greeter = Greeter(engine=engine, limits=limits, clock=clock, registry=registry)
        self._state = ConnectionState.AWAITING_HELLO
        self._started_at = clock.now()
        self._streams = StreamTable(limits.max_streams)
        self._telling = Telling(outbox, clock=clock, on_fault=self._fail)
        self._deliver = Deliver(
            telling=self._telling, streams=self._streams, clock=clock, registry=registry
        )
        self._ingest = Ingest(
            limits=limits, streams=self._streams, deliver=self._deliver, telling=self._telling
        )
        self._prompts = Prompts(
            engine=engine,
            limits=limits,
            text=text,
            streams=self._streams,
            telling=self._telling,
            registry=registry,
            pacing=pacing,
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
            telling=self._telling,
            ingest=self._ingest,
            prompts=self._prompts,
        )
        self._keeper = StreamKeeper(
            session_id=self.id,
            clock=clock,
            detached=registry.detached,
            streams=self._streams,
            deliver=self._deliver,
            telling=self._telling,
            ingest=self._ingest,
            prompts=self._prompts,
            pacing=pacing.config,
        )
        self._watch = Watch(
            limits=limits,
            clock=clock,
            streams=self._streams,
            telling=self._telling,
            ingest=self._ingest,
            on_fault=self._fail,
        )
        self._attachment.hold(self)

    @property
    def attachment(self) -> Attachment:
        """What the connection calls from now on, whichever session it turns out to serve."""
        return self._attachment

    @property
    def state(self) -> ConnectionState:
        return self._state

    @property
    def num_streams(self) -> int:
        return len(self._streams)

    @property
    def outbox_bytes(self) -> int:
        return self._telling.waiting_bytes

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
        if self._state is _CLOSED:
            return
        if self._is_token_new:
            self._is_token_new = False
            self._registry.tokens.confirm(self.id)
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

    @property
    def handle_sent(self) -> Callable[[Outgoing], None]:
        """To be called when the writer has written what it popped from the outbox."""
        return self._deliver.handle_sent

    def say(self, event: ServerEvent) -> bool:
        """Tell the people at the other end; returns whether anybody can be told."""
        return self._state is not ConnectionState.AWAITING_HELLO and self._deliver.say(event)

    def drain(self, deadline_ms: int) -> None:
        """Ask the client to go elsewhere: nothing new is taken, what is accepted is answered.

        ``is_idle`` tells when that is done.
        """
        if self._state in (ConnectionState.READY, ConnectionState.DRAINING):
            self._advance(ConnectionEvent.GOAWAY)
            self._registry.tokens.forget(self.id)
            self._telling.tell(GoAway(deadline_ms=deadline_ms))

    def note_path(self, sample: PathSample) -> None:
        """The connection has looked at the kernel's counters."""
        self._watch.network.note_path(sample)
        self._prompts.note_network(self._watch.network.state, self._clock.now())

    @property
    def network(self) -> NetworkState:
        """What the connection's network does at the moment."""
        return self._watch.network.state

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

    def lose(self, reason: str) -> None:
        """The connection is lost: wait for the client to come back, or close; idempotent.

        Sessions wait ``limits.resume_window_s`` if there is something to come back for, and as
        long as there is room for them.
        """
        detached, window_s = self._registry.detached, self._limits.resume_window_s
        if self._state is ConnectionState.DETACHED:
            return
        may_return = self._state is ConnectionState.READY and window_s > 0 and detached.is_open
        if may_return:
            self._detach()
        if not may_return or self._keeper.is_empty:
            self.close(reason)
            return
        logger.info("session %s is detached: %s", self.id, reason)
        expire = partial(detached.expire, self)
        self._expiry = self._clock.call_at(self._clock.now() + window_s, expire)
        detached.add(self, self._keeper.size_bytes)
        detached.enforce()

    def take_over(self, attachment: Attachment, request: ResumeRequest) -> None:
        """Go on on that connection; an older one, which nobody knew to be lost, is fenced."""
        if self._state is ConnectionState.READY:
            self._attachment.fence()
            self._detach()
        self._stop_expiry()
        self._advance(ConnectionEvent.RESUME)
        self._registry.detached.resume(self.id)
        self._attachment = attachment
        attachment.hold(self)
        self._deliver.attach(attachment.outbox)
        resumed = self._keeper.attach(request.streams[: self._max_resumed])
        self._greet(self._greeter.welcome(self, used_token=request.token, resumed=resumed))
        self._is_token_new = True
        logger.info("session %s resumed: %d streams", self.id, len(self._streams))

    def close(self, reason: str) -> None:
        """The connection is over: free everything, count what could not be told; idempotent."""
        if self._state is ConnectionState.CLOSED:
            return
        drop_reason = DropReason.SHUTDOWN if self._is_draining else DropReason.DISCONNECTED
        age_s = self._clock.now() - self._started_at
        self._advance(ConnectionEvent.CLOSE)
        self._watch.stop()
        self._stop_expiry()
        untold = sum(stream.tally.in_flight for stream in self._streams)
        for stream in self._streams:
            self._keeper.give_up(stream, drop_reason)
        self._streams.finished.clear()
        self._deliver.detach()
        self._registry.remove(self.id)
        logger.info("session %s closed: %s, %d untold, %.1f s", self.id, reason, untold, age_s)

    @property
    def _is_draining(self) -> bool:
        return self._state is _DRAINING

    def _handle(self, message: ClientMessage) -> None:
        is_draining = self._state is _DRAINING
        if not (isinstance(message, Open) and is_draining):  # which is answered
            self._advance(CONNECTION_EVENTS[type(message)])
        tenant = self.principal or ""
        moment = Moment(now=self._clock.now(), is_draining=is_draining, tenant=tenant)
        match message:
            case Hello():
                self._hello(message)
            case Open():
                self._commands.open(message, moment)
            case Ping(t=t):
                self._telling.tell(ServerPong(t=t, now_us=self._clock.now_us()))
            case ClientPong():
                self._watch.receive_pong(message)
            case _:
                self._commands.handle(message, moment)

    def _hello(self, message: Hello) -> None:
        if self.principal is None and message.token:
            self.principal = self._authenticate(message.token)
        if self.principal is None:
            detail = "the key is not valid" if message.token else "there is none"
            raise ConnectionFault(CloseCode.AUTH, ProblemKind.UNAUTHORIZED, detail)
        request = message.resume
        if request is None:
            self._greet(self._greeter.welcome(self))
        else:
            earlier = self._registry.tokens.claim(request, self.principal)
            if earlier is not None:
                self._give_way()
                earlier.take_over(self._attachment, request)
                return
            resumed = [not_recovered(each.stream) for each in request.streams[: self._max_resumed]]
            self._greet(self._greeter.welcome(self, resumed=resumed))
        logger.info("session %s opened: %s", self.id, self.principal)

    @property
    def _max_resumed(self) -> int:
        return self._limits.max_streams + MAX_FINISHED

    def _greet(self, welcome: Welcome) -> None:
        self._telling.tell(welcome)
        self._watch.welcome()

    def _give_way(self) -> None:
        """The client goes on with an earlier session: this one was only the door."""
        self._advance(ConnectionEvent.CLOSE)
        self._watch.stop()
        self._registry.remove(self.id)

    def _detach(self) -> None:
        self._advance(ConnectionEvent.LOSE)
        self._watch.stop()
        self._keeper.detach()

    def _stop_expiry(self) -> None:
        if self._expiry is not None:
            self._expiry.cancel()
            self._expiry = None

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
        self._telling.tell(error_message(RequestProblem(kind, error.detail)))

    def _fail(self, fault: ConnectionFault) -> None:
        if self._state is not ConnectionState.CLOSED:
            self._attachment.fail(fault)
