"""A WebSocket client that does only what it is told: it may never read, or vanish."""

from __future__ import annotations

import asyncio
import os
import socket
import struct

from gateway.wire.messages import SUBPROTOCOL

TEXT, BINARY, CLOSE, PING = 1, 2, 8, 9


class RawWebSocket:
    """Frames by hand over a bare socket. ``receive_buffer_bytes`` makes a stall bite early, and
    with ``send_buffer_bytes`` little waits before what is sent next."""

    def __init__(
        self,
        port: int,
        *,
        receive_buffer_bytes: int | None = None,
        send_buffer_bytes: int | None = None,
    ) -> None:
        self._port = port
        self._sock = socket.socket()
        self._sock.setblocking(False)
        if receive_buffer_bytes is not None:
            self._sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, receive_buffer_bytes)
        if send_buffer_bytes is not None:
            self._sock.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, send_buffer_bytes)
        self._loop = asyncio.get_running_loop()

    def __enter__(self) -> RawWebSocket:
        return self

    def __exit__(self, *_: object) -> None:
        self._sock.close()

    async def connect(self) -> None:
        await self._loop.sock_connect(self._sock, ("127.0.0.1", self._port))

    async def handshake(self) -> bytes:
        """Connect and upgrade; returns the response head."""
        await self.connect()
        request = (
            f"GET /v1/stream HTTP/1.1\r\nHost: 127.0.0.1:{self._port}\r\n"
            "Upgrade: websocket\r\nConnection: Upgrade\r\nSec-WebSocket-Version: 13\r\n"
            f"Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\n"
            f"Sec-WebSocket-Protocol: {SUBPROTOCOL}\r\n\r\n"
        )
        await self.send_bytes(request.encode())
        head = b""
        while b"\r\n\r\n" not in head:
            head += await self._loop.sock_recv(self._sock, 1)
        return head

    async def send_bytes(self, data: bytes) -> None:
        async with asyncio.timeout(20):
            await self._loop.sock_sendall(self._sock, data)

    async def send(self, data: bytes, opcode: int = TEXT, *, declared: int | None = None) -> None:
        """One masked frame; ``declared`` lies about its length."""
        length = len(data) if declared is None else declared
        head = bytes((0x80 | opcode,))
        if length < 126:
            head += bytes((0x80 | length,))
        elif length < 65536:
            head += bytes((0x80 | 126,)) + struct.pack("!H", length)
        else:
            head += bytes((0x80 | 127,)) + struct.pack("!Q", length)
        mask = os.urandom(4)
        masked = bytes(byte ^ mask[index % 4] for index, byte in enumerate(data))
        await self.send_bytes(head + mask + masked)

    async def receive(self) -> tuple[int, bytes]:
        """Opcode and payload of the next frame; raises ConnectionError at the end."""
        first, second = await self._exactly(2)
        length = second & 0x7F
        if length == 126:
            (length,) = struct.unpack("!H", await self._exactly(2))
        elif length == 127:
            (length,) = struct.unpack("!Q", await self._exactly(8))
        return first & 0x0F, await self._exactly(length)

    async def receive_close(self) -> int:
        """Skip everything up to the close frame; returns its code."""
        while True:
            opcode, payload = await self.receive()
            if opcode == CLOSE:
                return int.from_bytes(payload[:2], "big")

    def reset(self) -> None:
        """Vanish with an RST."""
        self._sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        self._sock.close()

    async def _exactly(self, count: int) -> bytes:
        data = b""
        async with asyncio.timeout(20):
            while len(data) < count:
                chunk = await self._loop.sock_recv(self._sock, count - len(data))
                if not chunk:
                    raise ConnectionResetError("end of file")
                data += chunk
        return data
