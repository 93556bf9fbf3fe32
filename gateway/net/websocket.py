"""aiohttp's WebSocket with the waits taken out: what the connection needs and nothing hidden.

``WebSocketResponse.receive()`` and ``close()`` drain without a bound, so a peer that stops
reading could hold both for ever; pings are answered on the reader's task. Here reading only
reads, sending never waits, and the one wait there is belongs to the writer, who bounds it.
"""

from __future__ import annotations

import struct
import sys
from typing import Literal, NamedTuple

from aiohttp import EofStream, WebSocketError, WSMsgType, web

from gateway.errors import CloseCode, ConnectionFault, ProblemKind
from gateway.net.http_protocol import HttpProtocol
from gateway.net.socket_options import limit_write_buffer
from gateway.wire.codec import MAX_BINARY_BYTES
from gateway.wire.messages import SUBPROTOCOL

_CLOSE_CODE = struct.Struct("!H")
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

    def __init__(self, request: web.Request) -> None:
        self._request = request
        self._response: web.WebSocketResponse[Literal[False]] = web.WebSocketResponse(
            protocols=(SUBPROTOCOL,),
            compress=False,  # no decompression bombs, and video does not compress
            autoping=False,  # pongs go through the writer like everything else
            autoclose=False,
            heartbeat=None,  # liveness is the session's: this one keeps clients that never read
            decode_text=False,
            max_msg_size=MAX_BINARY_BYTES,
            writer_limit=sys.maxsize,  # send_frame() then never waits
        )

    @property
    def response(self) -> web.StreamResponse:
        """What the request handler has to return."""
        return self._response

    @property
    def is_writable(self) -> bool:
        """Whether the transport's buffer is below its mark (or the transport is gone)."""
        return not self._request.protocol.writing_paused

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
        limit_write_buffer(transport)

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
            protocol = self._request.protocol
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

    async def send(self, kind: WSMsgType, data: bytes) -> None:
        """Hand one message to the transport without waiting.

        Raises:
            PeerGone: the transport is closed.
        """
        try:
            await self._response.send_frame(data, kind)
        except (OSError, RuntimeError):
            # uvloop raises RuntimeError for a transport that asyncio would only log about.
            raise PeerGone from None

    async def send_close(self, code: int, reason: str) -> None:
        """Send the close frame; afterwards the socket is writable once everything has left."""
        transport = self._request.transport
        if transport is not None:
            transport.set_write_buffer_limits(high=0)
        text = reason.encode()[:_MAX_REASON_BYTES].decode(errors="ignore").encode()
        await self.send(WSMsgType.CLOSE, _CLOSE_CODE.pack(code) + text)

    def close(self) -> None:
        """Close the transport once its buffer is empty."""
        transport = self._request.transport
        if transport is not None:
            transport.close()

    def abort(self) -> None:
        """Close the transport now; what is unsent is lost."""
        transport = self._request.transport
        if transport is not None:
            transport.abort()
