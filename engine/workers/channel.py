"""The control socket: msgpack messages, each after its length, over a Unix socket pair.

The host's end lives on the event loop, the worker's end blocks. Both refuse a message over their
limit, so neither ever buffers more than one message and one read. What the host has yet to send is
bounded by the senders: a vision host has at most ``cuda_streams + prefetch_count`` batches
outstanding, of a few dozen bytes per item; a language-model host heeds ``is_writable``.
"""

from __future__ import annotations

import asyncio
import logging
import socket
import struct
from collections.abc import Callable, Iterator
from typing import Any, Generic, TypeVar, cast

import msgspec

logger = logging.getLogger(__name__)

LENGTH = struct.Struct("<I")
MAX_DOWN_BYTES = 4 * 1024 * 1024  # Start carries the manifest, with its labels
MAX_UNSENT_BYTES = 256 * 1024  # in the host's buffer before it is not writable any more
UP_OVERHEAD_BYTES = 64 * 1024  # beyond max_output_bytes: keys, timings, a start failure's text

Message = TypeVar("Message")


class ChannelError(Exception):
    """The peer sent something that is not a message, or one that is too large."""


def encode_message(message: msgspec.Struct, limit: int) -> bytes:
    """Length and body; raises ``ChannelError`` when the body is over ``limit`` bytes."""
    body = msgspec.msgpack.encode(message)
    if len(body) > limit:
        raise ChannelError(f"a message of {len(body)} bytes is over the limit of {limit}")
    return LENGTH.pack(len(body)) + body


class MessageBuffer:
    """Cuts a byte stream into message bodies; holds at most one incomplete message (pure)."""

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._buffer = bytearray()

    def feed(self, data: bytes) -> Iterator[bytes]:
        """Add ``data`` and yield each complete body; raises ``ChannelError`` on an oversized one.

        The iterator must be exhausted before the next call.
        """
        self._buffer += data
        while len(self._buffer) >= LENGTH.size:
            (size,) = LENGTH.unpack_from(self._buffer)
            if size > self._limit:
                raise ChannelError(f"a message of {size} bytes is over the limit of {self._limit}")
            end = LENGTH.size + size
            if len(self._buffer) < end:
                return
            with memoryview(self._buffer) as view:
                body = bytes(view[LENGTH.size : end])
            del self._buffer[:end]
            yield body


class HostChannel(asyncio.Protocol):
    """The host's end. ``on_message`` runs on the loop for each message, in order; ``on_writable``
    when the channel is writable again.

    A malformed message closes the channel; ``closed`` is resolved, with the reason or "", once
    nothing more will arrive. ``messages`` is the union of those that come up.
    """

    def __init__(
        self,
        messages: Any,
        max_message_bytes: int,
        on_message: Callable[[Any], None],
        on_writable: Callable[[], None],
    ) -> None:
        self._on_message = on_message
        self._on_writable = on_writable
        self._buffer = MessageBuffer(max_message_bytes)
        self._decoder = msgspec.msgpack.Decoder(messages)
        self._transport: asyncio.Transport | None = None
        self._is_paused = False
        self._reason = ""
        self.closed: asyncio.Future[str] = asyncio.get_running_loop().create_future()

    @property
    def is_writable(self) -> bool:
        """Whether at most ``MAX_UNSENT_BYTES`` and one message wait to be sent."""
        return self._transport is not None and not self._is_paused

    def send(self, message: msgspec.Struct) -> None:
        """Hand over one message; lost without a trace when the worker is gone."""
        if self._transport is not None and not self._transport.is_closing():
            self._transport.write(encode_message(message, MAX_DOWN_BYTES))

    def close(self) -> None:
        """Close at once, unsent bytes included; idempotent."""
        if self._transport is not None:
            self._transport.abort()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)
        self._transport.set_write_buffer_limits(high=MAX_UNSENT_BYTES)

    def pause_writing(self) -> None:
        self._is_paused = True

    def resume_writing(self) -> None:
        self._is_paused = False
        self._on_writable()

    def data_received(self, data: bytes) -> None:
        try:
            for body in self._buffer.feed(data):
                self._on_message(self._decoder.decode(body))
        except (ChannelError, msgspec.MsgspecError) as error:
            self._reason = f"sent a malformed message: {error}"
            self.close()

    def connection_lost(self, exc: Exception | None) -> None:
        if not self.closed.done():
            self.closed.set_result(self._reason)


class WorkerChannel(Generic[Message]):
    """The worker's end: one thread receives, one thread at a time sends; both block."""

    def __init__(self, fd: int, decoder: msgspec.msgpack.Decoder[Message]) -> None:
        self._socket = socket.socket(fileno=fd)
        self._decoder = decoder

    def receive(self) -> Message | None:
        """The next message; None when the host is gone."""
        head = self._receive_exactly(LENGTH.size)
        if head is None:
            return None
        (size,) = LENGTH.unpack(head)
        if size > MAX_DOWN_BYTES:
            raise ChannelError(f"a message of {size} bytes is over the limit of {MAX_DOWN_BYTES}")
        body = self._receive_exactly(size)
        return None if body is None else self._decoder.decode(body)

    def send(self, encoded: bytes) -> None:
        """Send the bytes of ``encode_message``; raises ``OSError`` when the host is gone."""
        self._socket.sendall(encoded)

    def _receive_exactly(self, size: int) -> bytearray | None:
        buffer = bytearray(size)
        view = memoryview(buffer)
        received = 0
        while received < size:
            try:
                count = self._socket.recv_into(view[received:])
            except ConnectionError:
                return None
            if count == 0:
                return None
            received += count
        return buffer
