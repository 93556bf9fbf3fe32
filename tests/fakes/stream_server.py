"""A small server that speaks ``clawstream.v1`` over a real socket, with a script for behaviour.

It keeps credit and receipts as the protocol asks, and answers every frame through ``answer``,
which a test may replace.
"""

from __future__ import annotations

import asyncio
import struct
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field

import msgspec
from msgspec import UNSET, UnsetType
from websockets.asyncio.server import Server, ServerConnection, serve
from websockets.exceptions import ConnectionClosed

from gateway.wire import codec
from gateway.wire.assembly import FrameAssembler
from gateway.wire.codec import BinaryMessage, FrameHeader, MessageType
from gateway.wire.messages import (
    SUBPROTOCOL,
    Ack,
    AttachmentRef,
    ClientPong,
    Close,
    Closed,
    Credit,
    CreditGrant,
    Drop,
    EndInput,
    ErrorMessage,
    Hello,
    Limits,
    Open,
    Opened,
    Ping,
    Problem,
    ResultMessage,
    ResultTiming,
    ServerMessage,
    ServerPong,
    Welcome,
)

LIMITS = Limits(
    max_message_bytes=codec.MAX_BINARY_BYTES,
    max_frame_bytes=1_000_000,
    max_streams=4,
    max_width=8192,
    max_height=8192,
    max_pixels=2**25,
    max_prompts=8,
    max_messages_per_s=4000.0,
    ack_deadline_s=10.0,
)
NOW_US = 5_000_000_000


def picture(width: int = 53, height: int = 37) -> bytes:
    """The beginning of a JPEG: enough for everybody who reads only its header."""
    return (
        b"\xff\xd8\xff\xc0"
        + struct.pack(">HBHHB", 17, 8, height, width, 3)
        + bytes.fromhex("011100021100031100")
    )


def problem(slug: str, status: int = 400) -> Problem:
    return Problem(type=f"urn:clawstream:problem:{slug}", title=slug, status=status, detail="why")


@dataclass(slots=True)
class StreamBooks:
    """One stream as the server sees it; ``count`` sets what ``closed`` will say."""

    open: Open
    results: int = 0
    dropped: int = 0
    errors: int = 0
    cancelled: int = 0
    received: int = 0
    received_bytes: int = 0
    credit_used: int = 0
    acks: list[Ack] = field(default_factory=list)
    unanswered: list[BinaryMessage] = field(default_factory=list)

    def closed(self) -> Closed:
        answered = self.results + self.dropped + self.errors + self.cancelled
        return Closed(
            stream=self.open.stream,
            accepted=answered,
            results=self.results,
            dropped=self.dropped,
            errors=self.errors,
            cancelled=self.cancelled,
        )


class Peer:
    """One connection of the fake server; tests call these from ``answer`` and after."""

    def __init__(self, socket: ServerConnection, server: StreamServer) -> None:
        self.socket = socket
        self.streams: dict[int, StreamBooks] = {}
        self.pongs: list[ClientPong] = []
        self._server = server
        self._assembler = FrameAssembler(max_frame_bytes=LIMITS.max_frame_bytes, timeout_s=10.0)

    async def send(self, message: ServerMessage) -> None:
        await self.socket.send(codec.encode(message), text=True)

    async def result(
        self, frame: BinaryMessage, *, data: bytes = b"{}", annotated: bytes | None = None
    ) -> None:
        header = frame.header
        books = self.streams[header.stream]
        attachments: list[AttachmentRef] | UnsetType = UNSET
        if annotated is not None:
            companion = FrameHeader(
                type=MessageType.ANNOTATED_FRAME,
                stream=header.stream,
                seq=header.seq,
                t_us=header.t_us,
            )
            for piece in codec.split_binary(companion, annotated, b'{"codec":"jpeg"}'):
                await self.socket.send(piece)
            attachments = [AttachmentRef(kind=3, bytes=len(annotated))]
        books.results += 1
        await self.send(
            ResultMessage(
                stream=header.stream,
                seq=header.seq,
                t_us=header.t_us,
                model=books.open.model,
                version="1",
                data=msgspec.Raw(data),
                timing=ResultTiming(received_us=NOW_US, run=1000),
                attachments=attachments,
            )
        )
        await self.settle(header.stream)

    async def drop(self, frame: BinaryMessage, reason: str) -> None:
        stream, seq = frame.header.stream, frame.header.seq
        books = self.streams[stream]
        if reason == "cancelled":
            books.cancelled += 1
        else:
            books.dropped += 1
        await self.send(Drop(stream=stream, reason=reason, first=seq, last=seq, count=1))
        await self.settle(stream)

    async def error(self, frame: BinaryMessage, slug: str, *, is_refusal: bool = False) -> None:
        stream, seq = frame.header.stream, frame.header.seq
        self.streams[stream].errors += not is_refusal
        await self.send(
            ErrorMessage(problem=problem(slug), retryable=False, stream=stream, seq=seq)
        )
        await self.settle(stream)

    async def settle(self, stream: int) -> None:
        books = self.streams[stream]
        books.credit_used += 1
        grant = self._server.credit
        await self.send(
            Credit(
                stream=stream,
                max_frames=grant.max_frames + books.credit_used,
                max_bytes=grant.max_bytes + books.received_bytes,
            )
        )

    async def run(self) -> None:
        first = codec.decode_client(str(await self.socket.recv()).encode())
        assert isinstance(first, Hello)
        self._server.hellos.append(first)
        await self._server.greet(self)
        async for data in self.socket:
            if isinstance(data, str):
                await self._receive_text(data.encode())
                continue
            whole = self._assembler.push(codec.decode_binary(data), 0.0)
            if whole is not None:
                books = self.streams[whole.header.stream]
                books.received += 1
                books.received_bytes += len(whole.payload)
                self._server.frames.append(whole)
                self._server.frame_arrived.set()
                await self._server.answer(self, whole)

    async def _receive_text(self, text: bytes) -> None:
        message = codec.decode_client(text)
        match message:
            case Open():
                self.streams[message.stream] = StreamBooks(message)
                await self._server.opened(self, message)
            case EndInput(stream=stream):
                self._server.ended.set()
                await self._server.end(self, self.streams[stream])
            case Close(stream=stream):
                for frame in self.streams[stream].unanswered:
                    await self.drop(frame, "cancelled")
                await self.send(self.streams[stream].closed())
            case Ack(stream=stream):
                self.streams[stream].acks.append(message)
            case Ping(t=t) if self._server.answers_pings:
                await self.send(ServerPong(t=t, now_us=NOW_US))
            case ClientPong():
                self.pongs.append(message)
            case _:
                pass


class StreamServer:
    """The behaviour of every connection; replace the coroutines to script another."""

    def __init__(self) -> None:
        self.credit = CreditGrant(max_frames=8, max_bytes=1_000_000)
        self.answers_pings = True
        self.hellos: list[Hello] = []
        self.peers: list[Peer] = []
        self.frames: list[BinaryMessage] = []
        self.frame_arrived = asyncio.Event()
        self.ended = asyncio.Event()
        self.url = ""
        self.greet: Callable[[Peer], Awaitable[None]] = welcome
        self.opened: Callable[[Peer, Open], Awaitable[None]] = self._opened
        self.answer: Callable[[Peer, BinaryMessage], Awaitable[None]] = answer_with_result
        self.end: Callable[[Peer, StreamBooks], Awaitable[None]] = send_closed

    async def _opened(self, peer: Peer, message: Open) -> None:
        await peer.send(Opened(stream=message.stream, credit=self.credit))

    async def handle(self, socket: ServerConnection) -> None:
        peer = Peer(socket, self)
        self.peers.append(peer)
        try:
            await peer.run()
        except ConnectionClosed:
            pass  # the client is gone


async def welcome(peer: Peer, service_level: str | UnsetType = UNSET) -> None:
    await peer.send(
        Welcome(
            session="s1",
            epoch="e1",
            resume_token="r1",
            resume_window_s=0.0,
            limits=LIMITS,
            models=["centerface"],
            now_us=NOW_US,
            service_level=service_level,
        )
    )


async def answer_with_result(peer: Peer, frame: BinaryMessage) -> None:
    await peer.result(frame, data=b'{"objects":[]}')


async def answer_later(peer: Peer, frame: BinaryMessage) -> None:
    """Keep the frame; a test answers it, or ``close`` cancels it."""
    peer.streams[frame.header.stream].unanswered.append(frame)


async def send_closed(peer: Peer, books: StreamBooks) -> None:
    await peer.send(books.closed())


@asynccontextmanager
async def stream_server(server: StreamServer, *, port: int = 0) -> AsyncIterator[Server]:
    """Serve on a free port; ``server.url`` says where."""
    async with serve(
        server.handle,
        "127.0.0.1",
        port,
        subprotocols=[SUBPROTOCOL],  # type: ignore[list-item]  # a NewType of str
        compression=None,
        ping_interval=None,
        close_timeout=1.0,
    ) as listening:
        host, number = listening.sockets[0].getsockname()[:2]
        server.url = f"ws://{host}:{number}"
        yield listening
