"""aiohttp's WebSocket with the waits taken out: what the connection needs and nothing hidden.

``WebSocketResponse.receive()`` and ``close()`` drain without a bound, so a peer that stops
reading could hold both for ever; pings are answered on the reader's task. Here reading only
reads, sending never waits, and the one wait there is belongs to the writer, who bounds it. Frames
are written here: those of a server are two to ten bytes before the payload, and aiohttp's three
coroutines around them cost a token more than its JSON does.
"""

from __future__ import annotations

import asyncio
import struct
from typing import Literal, NamedTuple

from aiohttp import EofStream, WebSocketError, WSMsgType, web

from gateway.errors import CloseCode, ConnectionFault, ProblemKind
from gateway.net.http_protocol import HttpProtocol
from gateway.net.socket_options import limit_write_buffer
from gateway.net.tcp_info import read_transport_path, read_window
from gateway.stream.network_estimate import PathSample
from gateway.wire.codec import MAX_BINARY_BYTES
from gateway.wire.messages import SUBPROTOCOL

_TEXT = WSMsgType.TEXT  # a look-up takes 0.2 us, once per token
_CLOSE_CODE = struct.Struct("!H")
_FIN = 0x80
_SHORT_TEXT = [bytes((_FIN | WSMsgType.TEXT, length)) for length in range(126)]
_MEDIUM, _LONG = struct.Struct("!BBH"), struct.Struct("!BBQ")
# What leaves with one system call, which costs as much as everything else about a small message.
# No more than the kernel holds back unsent anyway, so that messages are still chosen late; up to
# here one copy is cheaper than a list of buffers.
WRITE_BYTES = 16 * 1024
_MAX_REASON_BYTES = 123
_KINDS = {
    CloseCode.TOO_BIG: ProblemKind.FRAME_TOO_LARGE,
    CloseCode.INVALID_DATA: ProblemKind.INVALID_MESSAGE,
}


class PeerGone(Exception):
    """The transport is closed: reset, end of file, or aborted by us."""


class Received(NamedTuple):
    """One message; ``data`` is the close code for CLOSE and bytes for everything else."""

    type: WSMsgType
    data: bytes | int


class Socket:
    """One accepted WebSocket. One task reads, one other task sends and waits until writable."""

    # On every token's path: see ``gateway.stream.stream_queue.StreamQueue``.
    __slots__ = (
        "_protocol",
        "_request",
        "_response",
        "_transport",
        "_unwritten",
        "_unwritten_bytes",
    )

    def __init__(self, request: web.Request) -> None:
        self._request = request
        self._protocol = request.protocol
        self._response: web.WebSocketResponse[Literal[False]] = web.WebSocketResponse(
            protocols=(SUBPROTOCOL,),
            compress=False,  # no decompression bombs, and video does not compress
            autoping=False,  # pongs go through the writer like everything else
            autoclose=False,
            heartbeat=None,  # liveness is the session's: this one keeps clients that never read
            decode_text=False,
            max_msg_size=MAX_BINARY_BYTES,
        )
        self._transport: asyncio.Transport  # from ``accept`` on
        self._unwritten: list[bytes] = []
        self._unwritten_bytes = 0

    @property
    def response(self) -> web.StreamResponse:
        """What the request handler has to return."""
        return self._response

    @property
    def is_writable(self) -> bool:
        """Whether the transport's buffer is below its mark (or the transport is gone)."""
        return not self._protocol.writing_paused

    def read_path(self) -> PathSample | None:
        """What the kernel knows of the connection; None if it is over."""
        return read_transport_path(self._transport)

    def read_window(self) -> int | None:
        """How much the peer's kernel takes at the moment; None if that is not known."""
        if self._transport.is_closing():
            return None
        sock = self._transport.get_extra_info("socket")
        return None if sock is None else read_window(sock)

    async def accept(self) -> None:
        """Answer the handshake.

        Raises:
            web.HTTPBadRequest: it is not a WebSocket handshake.
            PeerGone: the peer has left already.
        """
        try:
            await self._response.prepare(self._request)
        except (ConnectionError, RuntimeError):
            raise PeerGone from None
        transport = self._request.transport
        if transport is None:
            raise PeerGone
        self._transport = transport
        limit_write_buffer(self._transport)

    async def read(self) -> Received:
        """The next message; control frames included.

        Raises:
            PeerGone: there will be no more.
            ConnectionFault: the peer broke RFC 6455, a message is too long, or it sends too many
                frames.
        """
        # The queue behind receive(), which would close the socket by itself on every error.
        reader = self._response._reader
        assert reader is not None, "accept() comes first"
        try:
            message = await reader.read()
        except WebSocketError as error:
            code = CloseCode(error.code)
            raise ConnectionFault(
                code, _KINDS.get(code, ProblemKind.INVALID_MESSAGE), str(error)
            ) from None
        except (EofStream, OSError, RuntimeError):
            protocol = self._protocol
            fault = protocol.fault if isinstance(protocol, HttpProtocol) else None
            raise fault or PeerGone from None
        data = message.data
        # Control frames come as bytearrays; bytes of bytes copies nothing.
        return Received(message.type, data if isinstance(data, int) else bytes(data or b""))

    async def wait_writable(self) -> None:
        """Wait until the transport's buffer is below its low mark; not bounded here.

        Raises:
            PeerGone: the transport was closed meanwhile.
        """
        try:
            await self._request.writer.drain()
        except OSError:
            raise PeerGone from None

    def send(self, kind: WSMsgType, data: bytes) -> None:
        """Take one message, which leaves with ``flush`` or when ``WRITE_BYTES`` are together;
        whether there is room is for the caller to ask.

        Raises:
            PeerGone: the transport is closed.
        """
        length = len(data)
        is_short = length < 126 and kind is _TEXT
        self._unwritten.append(_SHORT_TEXT[length] if is_short else _header(kind, length))
        self._unwritten.append(data)
        self._unwritten_bytes += length
        if self._unwritten_bytes >= WRITE_BYTES:
            self.flush()

    def flush(self) -> None:
        """Hand to the transport what was taken.

        Raises:
            PeerGone: the transport is closed.
        """
        if not self._unwritten:
            return
        parts, self._unwritten = self._unwritten, []
        num_bytes, self._unwritten_bytes = self._unwritten_bytes, 0
        if self._transport.is_closing():
            raise PeerGone
        try:
            if num_bytes <= WRITE_BYTES:
                self._transport.write(b"".join(parts))
            else:
                self._transport.writelines(parts)
        except (OSError, RuntimeError):
            # uvloop raises RuntimeError for a transport that asyncio would only log about.
            raise PeerGone from None

    def send_close(self, code: int, reason: str) -> None:
        """Send the close frame; afterwards the socket is writable once everything has left."""
        self._transport.set_write_buffer_limits(high=0)
        text = reason.encode()[:_MAX_REASON_BYTES].decode(errors="ignore").encode()
        self.send(WSMsgType.CLOSE, _CLOSE_CODE.pack(code) + text)
        self.flush()

    def close(self) -> None:
        """Close the transport once its buffer is empty."""
        self._transport.close()

    def abort(self) -> None:
        """Close the transport now; what is unsent is lost."""
        self._transport.abort()


def _header(kind: WSMsgType, length: int) -> bytes:
    """Of a whole message in one frame, unmasked (RFC 6455, 5.2)."""
    first = _FIN | kind
    if length < 126:
        return bytes((first, length))
    if length < 1 << 16:
        return _MEDIUM.pack(first, 126, length)
    return _LONG.pack(first, 127, length)
