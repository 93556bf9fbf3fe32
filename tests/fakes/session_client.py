"""A session with everything around it under the test's control: engine, time and writer."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

from gateway.config_sections import LimitsConfig, PacingConfig, StreamsConfig, TextConfig
from gateway.errors import ConnectionFault
from gateway.session.clock import Clock
from gateway.session.pacing import Pacing
from gateway.session.registry import SessionRegistry
from gateway.session.session import Session
from gateway.stream.entries import Outgoing
from gateway.stream.outbox import Outbox
from gateway.wire.codec import (
    FrameFlags,
    FrameHeader,
    MessageType,
    decode_server,
    encode,
    encode_binary,
)
from gateway.wire.messages import (
    ClientMessage,
    Hello,
    Open,
    ResumeRequest,
    ResumeStream,
    StreamKind,
    StreamOptions,
    Welcome,
)
from tests.fakes.picture_headers import jpeg_header
from tests.fakes.scripted_engine import ScriptedEngine, ScriptedLane
from tests.fakes.virtual_loop import VirtualLoop

M = TypeVar("M")


def always() -> bool:
    """A writer that is never short of room."""
    return True


def jpeg(width: int = 64, height: int = 48, *, padding: int = 0) -> bytes:
    """Header enough for the gateway, which decodes nothing."""
    return jpeg_header(width, height) + bytes(padding)


class SessionClient:
    """The client's end of one session, and the writer's.

    Tokens are not paced unless ``pacing`` says so: then they leave while the loop advances.
    """

    def __init__(
        self,
        *,
        engine: ScriptedEngine | None = None,
        limits: LimitsConfig | None = None,
        streams: StreamsConfig | None = None,
        text: TextConfig | None = None,
        pacing: PacingConfig | None = None,
        kinds: dict[str, str] | None = None,
        registry: SessionRegistry | None = None,
        loop: VirtualLoop | None = None,
        principal: str | None = "anonymous",
    ) -> None:
        self.engine = ScriptedEngine() if engine is None else engine
        self.loop = VirtualLoop() if loop is None else loop
        self.clock = Clock(self.loop)
        self.registry = SessionRegistry(8) if registry is None else registry
        limits = limits or LimitsConfig()
        self.outbox = Outbox(max_bytes=limits.max_outbox_bytes)
        self.passed: list[Outgoing] = []  # what has left at once, until ``receive``
        self.faults: list[ConnectionFault] = []
        self.session = Session(
            engine=self.engine,
            limits=limits,
            streams=streams or StreamsConfig(),
            text=text or TextConfig(),
            kinds=kinds,
            outbox=self.outbox,
            clock=self.clock,
            registry=self.registry,
            pacing=Pacing(pacing or PacingConfig(websocket="off"), self.clock),
            authenticate=lambda token: "key-1" if token == "secret" else None,
            on_fault=self.faults.append,
            principal=principal,
        )
        self.connection = self.session.attachment
        self.limits = limits
        self.welcome: Welcome | None = None
        self.session.start()

    def hello(self) -> SessionClient:
        self.send(Hello())
        (self.welcome,) = self.receive_only(Welcome)
        return self

    def come_back(
        self, *streams: tuple[int, int], principal: str = "anonymous", token: str | None = None
    ) -> SessionClient:
        """Another connection, which asks for this one's session and what follows each
        ``(stream, last_seq)``; what it is told waits in its outbox."""
        assert self.welcome is not None
        other = SessionClient(
            engine=self.engine,
            limits=self.limits,
            registry=self.registry,
            loop=self.loop,
            principal=principal,
        )
        request = ResumeRequest(
            session=self.welcome.session,
            token=self.welcome.resume_token if token is None else token,
            streams=[ResumeStream(stream=stream, last_seq=seq) for stream, seq in streams],
        )
        other.send(Hello(resume=request))
        outgoing = other.take()
        assert outgoing is not None
        other.connection.handle_sent(outgoing)
        welcome = decode_server(outgoing.data)
        assert isinstance(welcome, Welcome)
        other.welcome = welcome
        if welcome.session == self.welcome.session:
            other.session = self.session
        return other

    def open(
        self,
        stream: int = 1,
        *,
        model: str = "fake",
        kind: StreamKind = StreamKind.FRAMES,
        **options: Any,
    ) -> ScriptedLane:
        """Open a stream that the server accepts."""
        options_ = StreamOptions(**options)
        self.send(Open(stream=stream, model=model, kind=kind, options=options_))
        return self.engine.lanes[-1]

    def send(self, message: ClientMessage) -> None:
        self.connection.receive_text(encode(message))

    def send_frame(
        self,
        seq: int,
        payload: bytes | None = None,
        *,
        stream: int = 1,
        meta: bytes = b"",
        kind: MessageType = MessageType.FRAME,
        flags: FrameFlags = FrameFlags.NONE,
    ) -> None:
        header = FrameHeader(type=kind, stream=stream, seq=seq, t_us=seq * 10, flags=flags)
        payload = jpeg() if payload is None else payload
        self.connection.receive_binary(encode_binary(header, payload, meta))

    def take(self) -> Outgoing | None:
        """One message as the writer takes it, not yet written."""
        return self.outbox.pop(self.loop.time())

    def let_pass(self, has_room: Callable[[], bool] = always) -> SessionClient:
        """From now on what need not wait leaves at once, into ``passed``, while there is room."""

        def try_send(outgoing: Outgoing) -> bool:
            if not has_room():
                return False
            self.passed.append(outgoing)
            return True

        self.outbox.try_send = try_send
        return self

    def receive(self) -> list[Any]:
        """Everything that has passed or waits, written and decoded; binary messages as
        ``Outgoing``."""
        received = self._take_passed()
        while (outgoing := self.take()) is not None:
            received.append(decode_server(outgoing.data) if outgoing.is_text else outgoing)
            self.connection.handle_sent(outgoing)
            received += self._take_passed()
        return received

    def receive_only(self, kind: type[M]) -> list[M]:
        """Of everything that waits, the messages of one type."""
        return [message for message in self.receive() if isinstance(message, kind)]

    def _take_passed(self) -> list[Any]:
        passed, self.passed = self.passed, []
        return [decode_server(outgoing.data) for outgoing in passed]
