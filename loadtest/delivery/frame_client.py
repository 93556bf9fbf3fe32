"""A camera's connection by hand, whose reading is bad on purpose.

It sends frames at a fixed rate as far as its credit goes, answers pings, acknowledges what it has
read, and notes how old each result is when its last byte is read.
"""

from __future__ import annotations

import asyncio
import socket
import time
from collections import Counter
from dataclasses import dataclass, field
from typing import Any

import msgspec

from gateway.wire.codec import FrameHeader, MessageType, encode_binary
from loadtest.delivery.steady_engine import FRAMES
from loadtest.delivery.token_clients import HANDSHAKE, client_frame

FPS = 30.0
ACK_EVERY, ACK_S = 8, 0.25
_TEXT, _BINARY = 1, 2
# The smallest JPEG whose header the gateway takes: 64 x 48 pixels, no scan.
PICTURE = bytes.fromhex("ffd8ffc0000b080030004001011100ffd9") + bytes(400)


@dataclass(slots=True, kw_only=True)
class Reading:
    """How the client reads; may be changed at any time."""

    bytes_per_s: float = 1e6
    is_stalled: bool = False
    uploads: bool = True  # goes on sending frames, also without reading
    tick_s: float = 0.01


@dataclass(slots=True)
class Seen:
    """What the client has read."""

    ages: list[tuple[float, float]] = field(default_factory=list)  # (when, seconds old)
    drops: Counter[str] = field(default_factory=Counter)
    num_sent: int = 0
    num_bytes: int = 0


class FrameClient:
    """One connection with one stream. ``run`` until cancelled, or until the gateway ends it."""

    def __init__(
        self, port: int, reading: Reading, *, receive_buffer_bytes: int, options: dict[str, Any]
    ) -> None:
        self.seen = Seen()
        self.reading = reading
        self._port = port
        self._options = options
        self._sock = socket.socket()
        self._sock.setblocking(False)
        self._sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, receive_buffer_bytes)
        self._buffer = bytearray()
        self._max_frames = 0
        self._unacknowledged = 0
        self._acked_at = 0.0
        self._last_seq = -1

    async def run(self) -> None:
        loop = asyncio.get_running_loop()
        try:
            await loop.sock_connect(self._sock, ("127.0.0.1", self._port))
            await loop.sock_sendall(self._sock, HANDSHAKE.format(port=self._port).encode())
            await self._send({"type": "hello"})
            opening = {"type": "open", "stream": 1, "model": FRAMES, "options": self._options}
            await self._send(opening)
            async with asyncio.TaskGroup() as tasks:
                tasks.create_task(self._read(), name="slow reader reads")
                tasks.create_task(self._film(), name="slow reader films")
        except* ConnectionError:
            pass  # that is how those end who read too slowly
        finally:
            self._sock.close()

    async def _film(self) -> None:
        """A frame every 1 / FPS seconds with credit, labelled with the moment it was due."""
        loop = asyncio.get_running_loop()
        due_at = time.monotonic()
        seq = 0
        while True:
            due_at += 1.0 / FPS
            await asyncio.sleep(max(0.0, due_at - time.monotonic()))
            may_send = self.reading.uploads or not self.reading.is_stalled
            if may_send and self.seen.num_sent < self._max_frames:
                header = FrameHeader(
                    type=MessageType.FRAME, stream=1, seq=seq, t_us=int(due_at * 1e6)
                )
                data = encode_binary(header, PICTURE)
                await loop.sock_sendall(self._sock, client_frame(data, _BINARY))
                self.seen.num_sent += 1
            elif may_send and self.reading.is_stalled:
                # A client that uploads all the same: messages that need no credit.
                await self._send({"type": "ping", "t": 1})
            seq += 1

    async def _read(self) -> None:
        """So many bytes every tick, no more; what was not read is not made up for."""
        loop = asyncio.get_running_loop()
        next_at, allowance = loop.time(), 0.0
        while True:
            next_at = max(next_at + self.reading.tick_s, loop.time())
            await asyncio.sleep(max(0.0, next_at - loop.time()))
            if self.reading.is_stalled:
                continue
            allowance = min(allowance, 1.0) + self.reading.bytes_per_s * self.reading.tick_s
            while allowance >= 1.0:
                try:
                    data = self._sock.recv(int(allowance))
                except BlockingIOError:
                    break
                if not data:
                    raise ConnectionResetError("end of file")
                allowance -= len(data)
                self.seen.num_bytes += len(data)
                self._buffer += data
            await self._take_messages()

    async def _take_messages(self) -> None:
        if self._buffer.startswith(b"HTTP"):
            _, separator, rest = bytes(self._buffer).partition(b"\r\n\r\n")
            if not separator:
                return
            self._buffer = bytearray(rest)
        while (message := self._next_text()) is not None:
            await self._handle(msgspec.json.decode(message))
        now = time.monotonic()
        is_due = now - self._acked_at >= ACK_S and self._unacknowledged > 0
        if is_due or self._unacknowledged >= ACK_EVERY:
            await self._send({"type": "ack", "stream": 1, "seq": self._last_seq})
            self._unacknowledged, self._acked_at = 0, now

    def _next_text(self) -> bytes | None:
        """The next message that is complete; this gateway sends each in one frame."""
        if len(self._buffer) < 2:
            return None
        length, start = self._buffer[1], 2
        if length >= 126:
            size = 2 if length == 126 else 8
            start += size
            length = int.from_bytes(self._buffer[2:start], "big")
        if len(self._buffer) < start + length:
            return None
        data = bytes(self._buffer[start : start + length])
        del self._buffer[: start + length]
        return data

    async def _handle(self, message: dict[str, Any]) -> None:
        match message["type"]:
            case "result":
                now = time.monotonic()
                self.seen.ages.append((now, now - message["t_us"] / 1e6))
                self._count(message["seq"])
            case "drop":
                self.seen.drops[message["reason"]] += message["count"]
                self._count(message["to"])
            case "opened":
                self._max_frames = message["credit"]["max_frames"]
            case "credit":
                self._max_frames = message["max_frames"]
            case "ping":
                await self._send({"type": "pong", "t": message["t"]})
            case "error":
                raise RuntimeError(f"the gateway complains: {message['problem']}")

    def _count(self, seq: int) -> None:
        self._last_seq = max(self._last_seq, seq)
        self._unacknowledged += 1

    async def _send(self, message: dict[str, Any]) -> None:
        frame = client_frame(msgspec.json.encode(message), _TEXT)
        await asyncio.get_running_loop().sock_sendall(self._sock, frame)
