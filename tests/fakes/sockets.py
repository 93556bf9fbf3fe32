"""A WebSocket in memory, for tests of ``gateway.net.connection`` without a network."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from aiohttp import WSMsgType

from gateway.errors import ConnectionFault
from gateway.net.websocket import PeerGone, Received
from gateway.stream.entries import Outgoing
from gateway.stream.network_estimate import PathSample
from gateway.stream.network_state import NetworkState


class FakeSocket:
    """The interface of ``gateway.net.websocket.Socket``; the test plays the peer.

    ``sent`` is what the peer would have read, in ``num_writes`` pieces. ``stall`` is a peer that
    reads nothing.
    """

    def __init__(self) -> None:
        self.sent: list[tuple[WSMsgType, bytes]] = []
        self.num_writes = 0
        self._unwritten: list[tuple[WSMsgType, bytes]] = []
        self.close_frame: tuple[int, str] | None = None
        self.is_closed = False
        self.is_aborted = False
        self.path: PathSample | None = None  # what the kernel would say
        self.window: int | None = None
        self._incoming: asyncio.Queue[Received | Exception] = asyncio.Queue()
        self._writable = asyncio.Event()
        self._writable.set()

    # --- the peer's side

    def deliver(self, kind: WSMsgType, data: bytes | int) -> None:
        self._incoming.put_nowait(Received(kind, data))

    def break_rules(self, fault: ConnectionFault) -> None:
        self._incoming.put_nowait(fault)

    def leave(self) -> None:
        self._incoming.put_nowait(PeerGone())

    def stall(self) -> None:
        self._writable.clear()

    def resume(self) -> None:
        self._writable.set()

    def texts(self) -> list[bytes]:
        return [data for kind, data in self.sent if kind is WSMsgType.TEXT]

    # --- the connection's side

    @property
    def is_writable(self) -> bool:
        return self._writable.is_set()

    async def read(self) -> Received:
        received = await self._incoming.get()
        if isinstance(received, Exception):
            raise received
        return received

    def read_path(self) -> PathSample | None:
        return self.path

    def read_window(self) -> int | None:
        return self.window

    async def wait_writable(self) -> None:
        await self._writable.wait()

    def send(self, kind: WSMsgType, data: bytes) -> None:
        if self.is_closed or self.is_aborted:
            raise PeerGone
        self._unwritten.append((kind, data))

    def flush(self) -> None:
        if self._unwritten:
            if self.is_closed or self.is_aborted:
                self._unwritten.clear()
                raise PeerGone
            self.num_writes += 1
            self.sent += self._unwritten
            self._unwritten.clear()

    def send_close(self, code: int, reason: str) -> None:
        self.send(WSMsgType.CLOSE, b"")
        self.flush()
        self.close_frame = (code, reason)

    def close(self) -> None:
        self.is_closed = True

    def abort(self) -> None:
        self.is_aborted = True


def _ignore_sent(outgoing: Outgoing) -> None:
    """Until a test has something to say to it."""


class RecordingSession:
    """Notes what a connection tells it; ``fault`` is raised for the next message, ``on_sent`` is
    called for each that was sent."""

    def __init__(self) -> None:
        self.received: list[bytes] = []
        self.sent: list[Outgoing] = []
        self.close_reasons: list[str] = []
        self.fault: Exception | None = None
        self.on_sent: Callable[[Outgoing], None] = _ignore_sent
        self.paths: list[PathSample] = []
        self.network = NetworkState()
        self.is_idle = True

    def receive_text(self, data: bytes) -> None:
        self._receive(data)

    def receive_binary(self, data: bytes) -> None:
        self._receive(data)

    def handle_sent(self, outgoing: Outgoing) -> None:
        self.sent.append(outgoing)
        self.on_sent(outgoing)

    def note_path(self, sample: PathSample) -> None:
        self.paths.append(sample)

    def drain(self, deadline_ms: int) -> None:
        """Nothing to finish."""

    def give_up(self) -> None:
        """Nothing to give up."""

    def lose(self, reason: str) -> None:
        self.close_reasons.append(reason)

    def close(self, reason: str) -> None:
        self.close_reasons.append(reason)

    def _receive(self, data: bytes) -> None:
        if self.fault is not None:
            raise self.fault
        self.received.append(data)
