"""Many WebSocket clients in one process that cost little: arrivals are stamped as bytes come in.

They speak just enough of RFC 6455 and of ``clawstream.v1`` for one prompt each, and acknowledge
like a real client does, every ``ACK_EVERY`` tokens.
"""

from __future__ import annotations

import asyncio
import os
import time
from array import array
from collections.abc import Sequence
from functools import partial
from typing import cast

ACK_EVERY = 8
CONNECTS_AT_ONCE = 32
HANDSHAKE = (
    "GET /v1/stream HTTP/1.1\r\nHost: 127.0.0.1:{port}\r\nUpgrade: websocket\r\n"
    "Connection: Upgrade\r\nSec-WebSocket-Version: 13\r\n"
    "Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\n\r\n"
)
_TEXT = 1
_OPEN = b'{"type":"open","stream":1,"model":"%s","kind":"tokens"}'
_PROMPT = (
    b'{"type":"prompt","stream":1,"id":"a","prompt":"x","sampling":{"max_tokens":%d},'
    b'"deadline_ms":600000}'
)


def client_frame(data: bytes, opcode: int = _TEXT) -> bytes:
    """One masked message."""
    mask = os.urandom(4)
    masked = bytes(byte ^ mask[index % 4] for index, byte in enumerate(data))
    if len(data) < 126:
        return bytes((0x80 | opcode, 0x80 | len(data))) + mask + masked
    return bytes((0x80 | opcode, 0x80 | 126)) + len(data).to_bytes(2, "big") + mask + masked


class Client(asyncio.Protocol):
    """One connection: upgraded, then every text message goes to ``on_text`` with its time."""

    def __init__(self, port: int) -> None:
        self._request = HANDSHAKE.format(port=port).encode()
        self._buffer = b""
        self._is_open = False
        self.opened: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self.transport: asyncio.Transport | None = None
        self.is_lost = False

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = cast(asyncio.Transport, transport)  # uvloop's have no base in common
        self.transport.write(self._request)

    def connection_lost(self, error: Exception | None) -> None:
        self.is_lost = True
        if not self.opened.done():
            self.opened.set_exception(ConnectionError("refused"))

    def data_received(self, data: bytes) -> None:
        now = time.monotonic()
        buffer = self._buffer + data if self._buffer else data
        position = 0
        if not self._is_open:
            end = buffer.find(b"\r\n\r\n")
            if end < 0:
                self._buffer = buffer
                return
            position = end + 4
            self._is_open = True
            self.opened.set_result(None)
        while len(buffer) - position >= 2:
            length, start = buffer[position + 1], position + 2
            if length == 126:
                length = int.from_bytes(buffer[start : start + 2], "big")
                start += 2
            if len(buffer) < start + length:
                break
            self.on_text(buffer[start : start + length], now)
            position = start + length
        self._buffer = buffer[position:]

    def send(self, data: bytes) -> None:
        if self.transport is not None and not self.transport.is_closing():
            self.transport.write(client_frame(data))

    def on_text(self, data: bytes, now: float) -> None:
        """A whole message."""


class TokenClient(Client):
    """Asks for one answer and notes when each token of it came."""

    def __init__(self, port: int, model: str, max_tokens: int) -> None:
        super().__init__(port)
        self.arrivals: array[float] = array("d")
        self.is_done = False
        self.message_bytes = 0  # of the newest token
        self._hello = b'{"type":"hello"}'
        self._opening = _OPEN % model.encode()
        self._prompt = _PROMPT % max_tokens

    def begin(self) -> None:
        for message in (self._hello, self._opening, self._prompt):
            self.send(message)

    def on_text(self, data: bytes, now: float) -> None:
        if data.startswith(b'{"type":"token"'):
            self.arrivals.append(now)
            self.message_bytes = len(data)
            if len(self.arrivals) % ACK_EVERY == 0:
                self.send(b'{"type":"ack","stream":1,"seq":%d}' % (len(self.arrivals) - 1))
        elif data.startswith(b'{"type":"ping"'):
            self.send(data.replace(b"ping", b"pong"))
        elif data.startswith(b'{"type":"end"'):
            self.is_done = True


class EchoClient(Client):
    """Sends messages of a token's length at the clients' rate; the server sends them back."""

    def __init__(self, port: int, message_bytes: int) -> None:
        super().__init__(port)
        self.num_echoes = 0
        self._message = client_frame(b"x" * message_bytes)

    def tick(self) -> None:
        if self.transport is not None and not self.transport.is_closing():
            self.transport.write(self._message)

    def on_text(self, data: bytes, now: float) -> None:
        self.num_echoes += 1


async def connect_all(clients: Sequence[Client], port: int) -> None:
    """Open every connection, a few at a time; raises OSError."""
    loop = asyncio.get_running_loop()
    for start in range(0, len(clients), CONNECTS_AT_ONCE):
        some = clients[start : start + CONNECTS_AT_ONCE]
        connecting = [
            loop.create_connection(partial(_same, client), "127.0.0.1", port) for client in some
        ]
        await asyncio.gather(*connecting)
        await asyncio.gather(*(client.opened for client in some))


def _same(client: Client) -> Client:
    return client
