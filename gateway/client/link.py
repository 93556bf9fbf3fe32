"""One WebSocket connection: handshake, one reader, control messages, liveness.

The reader never waits for anybody: answers are handed over at once, pings are answered by the
control task. Whoever sends waits for room in the socket, at most ``send_timeout_s``; a connection
that takes no data is aborted, since a closing handshake would wait behind that data.
"""

from __future__ import annotations

import asyncio
import logging
import socket as sockets
import time
from collections import deque
from dataclasses import dataclass
from typing import Protocol

from websockets.asyncio.client import ClientConnection
from websockets.exceptions import ConnectionClosed

from gateway.client.frames import now_us
from gateway.client.liveness import ClockEstimate, Liveness
from gateway.wire import codec
from gateway.wire.assembly import FrameAssembler, FrameTooLarge
from gateway.wire.codec import BinaryMessage, ProtocolError, UnknownType
from gateway.wire.messages import (
    ClientMessage,
    ClientPong,
    Ping,
    ServerMessage,
    ServerPong,
    Welcome,
)

TICK_S = 0.25
MAX_CONTROL = 256  # control messages that wait for the socket
MAX_WAITING_PINGS = 16
ASSEMBLY_TIMEOUT_S = 30.0
NOTSENT_LOWAT_BYTES = 64 * 1024
ABNORMAL, NO_PONG = 1006, 4009

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class LinkSettings:
    """Bounds of one connection, seconds and bytes."""

    open_timeout_s: float = 10.0
    send_timeout_s: float = 10.0
    close_timeout_s: float = 2.0
    ping_interval_s: float = 5.0
    pong_timeout_s: float = 15.0
    max_attachment_bytes: int = 16 * 1024 * 1024


class LinkLost(Exception):
    """The connection is over; ``code`` is the close code, 1006 if it just broke."""

    def __init__(self, code: int, reason: str) -> None:
        super().__init__(f"{reason} (code {code})" if reason else f"connection lost (code {code})")
        self.code = code
        self.reason = reason


class Handler(Protocol):
    """Who the reader talks to; every call returns at once."""

    def on_message(self, message: ServerMessage) -> None:
        """Any control message but pings and pongs."""

    def on_binary(self, message: BinaryMessage) -> None:
        """A whole attachment."""

    def on_tick(self, now: float) -> None:
        """Called every quarter of a second, and when control messages wait."""


class Link:
    """An open, greeted connection. ``run`` serves it until it is lost; sending needs it to run."""

    def __init__(self, socket: ClientConnection, welcome: Welcome, settings: LinkSettings) -> None:
        self.welcome = welcome
        self._socket = socket
        self._settings = settings
        self._loss: LinkLost | None = None
        self._control: deque[ClientMessage] = deque()
        self._has_control = asyncio.Event()
        self._liveness = Liveness(
            interval_s=settings.ping_interval_s, timeout_s=settings.pong_timeout_s
        )
        self._pongs: dict[float, asyncio.Future[ClockEstimate]] = {}
        self._assembler = FrameAssembler(
            max_frame_bytes=settings.max_attachment_bytes, timeout_s=ASSEMBLY_TIMEOUT_S
        )
        _tune(socket)

    @property
    def is_lost(self) -> bool:
        return self._loss is not None

    @property
    def clock(self) -> ClockEstimate | None:
        """The server's clock, once a ping has been answered."""
        return self._liveness.clock

    async def run(self, handler: Handler) -> LinkLost:
        """Serve the connection and say how it ended; the socket is closed then."""
        try:
            async with asyncio.TaskGroup() as tasks:
                tasks.create_task(self._read(handler), name="clawstream client reader")
                tasks.create_task(self._write_control(handler), name="clawstream client control")
        except* LinkLost as lost:
            logger.debug("link lost: %s", lost.exceptions)
        finally:
            loss = self._lose(ABNORMAL, "")
            self._fail_pings(loss)
            self._socket.transport.abort()
        return loss

    def post(self, message: ClientMessage) -> None:
        """Send a control message soon. Beyond ``MAX_CONTROL`` waiting ones the link is lost."""
        if len(self._control) >= MAX_CONTROL:
            self._lose(ABNORMAL, "the server takes no data")
            self._socket.transport.abort()
            return
        self._control.append(message)
        self._has_control.set()

    async def send(self, data: bytes, *, is_text: bool = False) -> None:
        """Send one message; returns when the socket has taken it.

        Raises:
            LinkLost: the connection is over, or takes no data for ``send_timeout_s``.
        """
        try:
            async with asyncio.timeout(self._settings.send_timeout_s):
                await self._socket.send(data, text=is_text)
        except TimeoutError:
            self._socket.transport.abort()
            raise self._lose(ABNORMAL, "the server takes no data") from None
        except ConnectionClosed as closed:
            raise self._lose(*_code_and_reason(closed)) from None
        except (OSError, RuntimeError) as error:
            # uvloop raises RuntimeError when the transport is closing.
            raise self._lose(ABNORMAL, str(error)) from None

    async def ping(self) -> ClockEstimate:
        """Measure now.

        Raises:
            LinkLost: the connection ended, or nothing came back in ``pong_timeout_s``.
        """
        if self._loss is not None or len(self._pongs) >= MAX_WAITING_PINGS:
            raise self._loss or LinkLost(NO_PONG, "too many pings wait for an answer")
        answer: asyncio.Future[ClockEstimate] = asyncio.get_running_loop().create_future()
        t = self._liveness.ping(time.monotonic())
        self._pongs[t] = answer
        self.post(Ping(t=t))
        try:
            async with asyncio.timeout(self._settings.pong_timeout_s):
                return await answer
        except TimeoutError:
            raise LinkLost(NO_PONG, "the server does not answer pings") from None
        finally:
            self._pongs.pop(t, None)

    async def aclose(self) -> None:
        """Say goodbye, bounded by ``close_timeout_s``, then abort; idempotent."""
        await self._close(1000, "done")

    async def _close(self, code: int, reason: str) -> None:
        try:
            # The library's own close time-out does not cover a socket that takes no data.
            async with asyncio.timeout(self._settings.close_timeout_s):
                await self._socket.close(code, reason)
        except (TimeoutError, OSError, RuntimeError):
            pass  # aborted below
        finally:
            self._lose(code, reason)
            self._socket.transport.abort()

    async def _read(self, handler: Handler) -> None:
        while True:
            try:
                data = await self._socket.recv()
            except ConnectionClosed as closed:
                raise self._lose(*_code_and_reason(closed)) from None
            try:
                if isinstance(data, str):
                    self._receive_text(data.encode(), handler)
                else:
                    self._receive_binary(data, handler)
            except UnknownType as unknown:
                logger.debug("ignored: %s", unknown.detail)
            except ProtocolError as error:
                code = error.close_code or codec.PROTOCOL_ERROR
                loss = self._lose(code, f"the server broke the protocol: {error.detail}")
                await self._close(code, "protocol error")
                raise loss from None

    def _receive_text(self, text: bytes, handler: Handler) -> None:
        message = codec.decode_server(text)
        if isinstance(message, Ping):
            self.post(ClientPong(t=message.t, now_us=now_us()))
        elif isinstance(message, ServerPong):
            sample = self._liveness.pong(message.t, message.now_us, time.monotonic())
            waiting = self._pongs.get(message.t)
            if sample is not None and waiting is not None and not waiting.done():
                waiting.set_result(sample)
        else:
            handler.on_message(message)

    def _receive_binary(self, data: bytes, handler: Handler) -> None:
        message = codec.decode_binary(data)
        try:
            whole = self._assembler.push(message, time.monotonic())
        except FrameTooLarge as error:
            logger.warning("attachment of frame %d left out: %s", error.header.seq, error.detail)
            return
        if whole is not None:
            handler.on_binary(whole)

    async def _write_control(self, handler: Handler) -> None:
        while True:
            self._has_control.clear()
            now = time.monotonic()
            if self._liveness.is_peer_gone(now):
                raise self._lose(NO_PONG, "the server does not answer pings")
            self._assembler.expire(now)
            handler.on_tick(now)
            if self._liveness.is_ping_due(now):
                self.post(Ping(t=self._liveness.ping(now)))
            while self._control:
                await self.send(codec.encode(self._control.popleft()), is_text=True)
            try:
                async with asyncio.timeout(TICK_S):
                    await self._has_control.wait()
            except TimeoutError:
                pass  # a tick without control messages

    def _lose(self, code: int, reason: str) -> LinkLost:
        """The first reason counts: what follows are its consequences."""
        if self._loss is None:
            self._loss = LinkLost(code, reason)
            self._has_control.set()
        return self._loss

    def _fail_pings(self, loss: LinkLost) -> None:
        for waiting in self._pongs.values():
            if not waiting.done():
                waiting.set_exception(loss)


def _code_and_reason(closed: ConnectionClosed) -> tuple[int, str]:
    if closed.rcvd is None:
        return ABNORMAL, ""
    return closed.rcvd.code, closed.rcvd.reason


def _tune(socket: ClientConnection) -> None:
    """Keep the kernel's send buffer short: what waits there can no longer be dropped, and pings
    wait behind it."""
    raw = socket.transport.get_extra_info("socket")
    if raw is None or raw.family not in (sockets.AF_INET, sockets.AF_INET6):
        return
    options = [(sockets.TCP_NODELAY, 1)]
    if hasattr(sockets, "TCP_NOTSENT_LOWAT"):
        options.append((sockets.TCP_NOTSENT_LOWAT, NOTSENT_LOWAT_BYTES))
    for option, value in options:
        try:
            raw.setsockopt(sockets.IPPROTO_TCP, option, value)
        except OSError:
            logger.debug("socket option %d is not available", option)
