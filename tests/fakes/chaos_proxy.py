"""A TCP proxy that makes a network bad on purpose, each direction on its own.

In tests and benches ``async with ChaosProxy(port) as proxy`` and set ``proxy.up`` (what the client
sends) and ``proxy.down`` (what it gets) at any time; or in a process of its own:

    python -m tests.fakes.chaos_proxy PORT [--seed N] [--seconds S] [--down JSON] [--up JSON]

which prints its port, takes one JSON object of ``Toxics`` per line on standard input, for example
``{"down": {"latency_s": 0.1}}`` or ``{"reset": true}``, and ends with it.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import random
import socket
import struct
import sys
from dataclasses import dataclass, replace
from types import TracebackType
from typing import Any, Self

CHUNK_BYTES = 16 * 1024
MAX_CONNECTIONS = 2048
# What a direction may hold under way, as a network would; then the sender has to wait.
MAX_UNDER_WAY_BYTES = 256 * 1024
SOCKET_BUFFER_BYTES = 64 * 1024
CONNECT_TIMEOUT_S = 5.0
POLL_S = 0.01
PIECE_S = 0.02  # how long one piece keeps a network of limited rate busy
_RESET = struct.pack("ii", 1, 0)  # linger for no time: closing sends RST


@dataclass(frozen=True, slots=True, kw_only=True)
class Toxics:
    """What is wrong with one direction. The defaults are a perfect network.

    ``latency_s`` delays every byte, plus up to ``jitter_s`` more, evenly drawn, never out of order.
    ``bytes_per_s`` limits the rate; ``slice_bytes`` cuts what passes into pieces that small, each
    ``slice_gap_s`` after the one before. ``is_stalled`` lets nothing pass and reads nothing, so
    that the sender's buffers fill; ``is_black_hole`` reads and throws away.
    """

    latency_s: float = 0.0
    jitter_s: float = 0.0
    bytes_per_s: float | None = None
    slice_bytes: int | None = None
    slice_gap_s: float = 0.0
    is_stalled: bool = False
    is_black_hole: bool = False


class ChaosProxy:
    """Passes connections on to ``target_port`` of this machine, on a free port of its own.

    The same ``seed`` draws the same delays for the same chunks. It stops by itself after
    ``lifetime_s``, and with its context. At most ``MAX_CONNECTIONS`` at once; more are reset.
    """

    def __init__(self, target_port: int, *, seed: int = 0, lifetime_s: float = 600.0) -> None:
        self.up = Toxics()
        self.down = Toxics()
        self.is_refusing = False  # new connections are reset
        self.num_connections = 0  # so far
        self._target_port = target_port
        self._random = random.Random(seed)
        self._lifetime_s = lifetime_s
        self._server: asyncio.Server | None = None
        self._pairs: set[_Pair] = set()
        self._serving: set[asyncio.Task[None]] = set()  # one a connection
        self._expiry: asyncio.TimerHandle | None = None

    @property
    def port(self) -> int:
        assert self._server is not None
        return int(self._server.sockets[0].getsockname()[1])

    @property
    def num_open(self) -> int:
        return len(self._pairs)

    async def __aenter__(self) -> Self:
        listener = socket.socket()
        listener.bind(("127.0.0.1", 0))
        for option in (socket.SO_RCVBUF, socket.SO_SNDBUF):
            listener.setsockopt(socket.SOL_SOCKET, option, SOCKET_BUFFER_BYTES)
        self._server = await asyncio.start_server(self._serve, sock=listener, limit=CHUNK_BYTES)
        self._expiry = asyncio.get_running_loop().call_later(self._lifetime_s, self.stop)
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.stop()
        if self._serving:
            await asyncio.wait(self._serving, timeout=CONNECT_TIMEOUT_S)

    def stop(self) -> None:
        """Accept nobody and reset everybody; idempotent."""
        if self._expiry is not None:
            self._expiry.cancel()
        if self._server is not None:
            self._server.close()
        self.reset_all()

    def reset_all(self) -> None:
        """Both sides of every connection get an RST."""
        for pair in tuple(self._pairs):
            pair.reset()

    def half_close_all(self, *, towards_client: bool = True) -> None:
        """One side of every connection gets a FIN, while the other direction goes on."""
        for pair in tuple(self._pairs):
            pair.half_close(towards_client=towards_client)

    def cut_after(self, num_bytes: int) -> None:
        """Reset each open connection in the middle of what it gets, ``num_bytes`` from now."""
        for pair in tuple(self._pairs):
            pair.bytes_until_cut = num_bytes

    def draw_delay_s(self, toxics: Toxics) -> float:
        return toxics.latency_s + (self._random.random() * toxics.jitter_s)

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._serving.add(task)
        try:
            await self._connect_and_pass(reader, writer)
        finally:
            self._serving.discard(task)

    async def _connect_and_pass(
        self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
    ) -> None:
        self.num_connections += 1
        if self.is_refusing or len(self._pairs) >= MAX_CONNECTIONS:
            _reset(writer)
            return
        try:
            async with asyncio.timeout(CONNECT_TIMEOUT_S):
                target = await _connect(self._target_port)
        except OSError:
            _reset(writer)
            return
        pair = _Pair(self, (reader, writer), target)
        self._pairs.add(pair)
        try:
            if self._server is not None and self._server.is_serving():  # else it was stopped
                await pair.run()
        finally:
            pair.reset()
            self._pairs.discard(pair)


async def _connect(port: int) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    sock = socket.socket()
    sock.setblocking(False)
    for option in (socket.SO_RCVBUF, socket.SO_SNDBUF):
        sock.setsockopt(socket.SOL_SOCKET, option, SOCKET_BUFFER_BYTES)
    await asyncio.get_running_loop().sock_connect(sock, ("127.0.0.1", port))
    return await asyncio.open_connection(sock=sock, limit=CHUNK_BYTES)


class _Pair:
    """One connection: a client's socket, the target's, and a task for each direction."""

    def __init__(
        self,
        proxy: ChaosProxy,
        client: tuple[asyncio.StreamReader, asyncio.StreamWriter],
        target: tuple[asyncio.StreamReader, asyncio.StreamWriter],
    ) -> None:
        self.tasks: set[asyncio.Task[None]] = set()
        self.bytes_until_cut: int | None = None  # of what the client gets
        self._proxy = proxy
        self._client_reader, self._client_writer = client
        self._target_reader, self._target_writer = target

    async def run(self) -> None:
        up = _Direction(self._proxy, self, self._client_reader, self._target_writer, is_up=True)
        down = _Direction(self._proxy, self, self._target_reader, self._client_writer, is_up=False)
        for direction in (up, down):
            self.tasks.add(asyncio.create_task(direction.take(), name="chaos take"))
            self.tasks.add(asyncio.create_task(direction.give(), name="chaos give"))
        try:
            # The takers end with their side's FIN, the givers once that is passed on.
            await asyncio.wait(self.tasks, return_when=asyncio.FIRST_EXCEPTION)
        finally:
            for task in self.tasks:
                task.cancel()
            await asyncio.gather(*self.tasks, return_exceptions=True)

    def reset(self) -> None:
        _reset(self._client_writer)
        _reset(self._target_writer)
        for task in self.tasks:
            task.cancel()

    def half_close(self, *, towards_client: bool) -> None:
        writer = self._client_writer if towards_client else self._target_writer
        if not writer.is_closing():
            writer.write_eof()


class _Direction:
    """Takes from one side and gives to the other, at the time that the toxics say."""

    def __init__(
        self,
        proxy: ChaosProxy,
        pair: _Pair,
        reader: asyncio.StreamReader,
        writer: asyncio.StreamWriter,
        *,
        is_up: bool,
    ) -> None:
        self._proxy = proxy
        self._pair = pair
        self._reader = reader
        self._writer = writer
        self._is_up = is_up
        self._loop = asyncio.get_running_loop()
        # One entry per chunk, so bounded in bytes too. None: the side has closed.
        self._under_way: asyncio.Queue[tuple[float, bytes] | None] = asyncio.Queue(
            MAX_UNDER_WAY_BYTES // CHUNK_BYTES
        )
        self._last_due_at = 0.0
        self._free_at = 0.0  # when the rate lets the next bytes pass

    @property
    def _toxics(self) -> Toxics:
        return self._proxy.up if self._is_up else self._proxy.down

    async def take(self) -> None:
        """Read as long as there is room, and say when each chunk is due."""
        while True:
            await self._wait_while_stalled()
            data = await self._reader.read(CHUNK_BYTES)
            if self._toxics.is_black_hole:
                if not data:
                    return  # the other side hears nothing of the end either
                continue
            due_at = self._loop.time() + self._proxy.draw_delay_s(self._toxics)
            self._last_due_at = max(self._last_due_at, due_at)  # never out of order
            await self._under_way.put((self._last_due_at, data) if data else None)
            if not data:
                return

    async def give(self) -> None:
        """Write each chunk when it is due, no faster than the rate."""
        while (chunk := await self._under_way.get()) is not None:
            due_at, data = chunk
            await asyncio.sleep(max(0.0, due_at - self._loop.time()))
            await self._wait_while_stalled()
            await self._write(data)
        if not self._writer.is_closing():
            self._writer.write_eof()

    async def _write(self, data: bytes) -> None:
        cut = None if self._is_up else self._pair.bytes_until_cut
        if cut is not None:
            if cut < len(data):
                self._writer.write(data[:cut])
                await self._writer.drain()
                raise ConnectionResetError("cut")
            self._pair.bytes_until_cut = cut - len(data)
        view = memoryview(data)
        while view:
            toxics = self._toxics
            piece = view[: _piece_bytes(toxics)]
            view = view[len(piece) :]
            self._writer.write(bytes(piece))
            await self._writer.drain()
            gap_s = toxics.slice_gap_s if toxics.slice_bytes is not None else 0.0
            if toxics.bytes_per_s is not None:
                gap_s = max(gap_s, len(piece) / toxics.bytes_per_s)
            # On an absolute schedule, or the time that writing takes would slow the rate down.
            self._free_at = max(self._free_at, self._loop.time()) + gap_s
            await asyncio.sleep(max(0.0, self._free_at - self._loop.time()))

    async def _wait_while_stalled(self) -> None:
        while self._toxics.is_stalled:  # noqa: ASYNC110 - set from outside, at any time
            await asyncio.sleep(POLL_S)


def _piece_bytes(toxics: Toxics) -> int:
    """How much may pass at once: a slow network is slow all the time, not in bursts."""
    size = CHUNK_BYTES if toxics.slice_bytes is None else toxics.slice_bytes
    if toxics.bytes_per_s is not None:
        size = min(size, round(toxics.bytes_per_s * PIECE_S))
    return max(1, size)


def _reset(writer: asyncio.StreamWriter) -> None:
    sock = writer.get_extra_info("socket")
    if sock is not None and not writer.is_closing():
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _RESET)
    writer.transport.abort()


def apply(proxy: ChaosProxy, order: dict[str, Any]) -> None:
    """One order of the control API: ``up``, ``down``, ``refuse``, ``reset`` or ``half_close``."""
    if "up" in order:
        proxy.up = replace(Toxics(), **order["up"])
    if "down" in order:
        proxy.down = replace(Toxics(), **order["down"])
    proxy.is_refusing = order.get("refuse", proxy.is_refusing)
    if order.get("reset"):
        proxy.reset_all()
    if order.get("half_close"):
        proxy.half_close_all()


async def serve(arguments: argparse.Namespace) -> None:
    proxy = ChaosProxy(arguments.port, seed=arguments.seed, lifetime_s=arguments.seconds)
    apply(proxy, {"up": json.loads(arguments.up), "down": json.loads(arguments.down)})
    async with asyncio.timeout(arguments.seconds), proxy:
        print(proxy.port, flush=True)  # noqa: T201 - whoever started us reads it
        while line := await asyncio.to_thread(sys.stdin.readline):
            apply(proxy, json.loads(line))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("port", type=int)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--seconds", type=float, default=600.0)
    parser.add_argument("--up", default="{}")
    parser.add_argument("--down", default="{}")
    asyncio.run(serve(parser.parse_args()))


if __name__ == "__main__":
    main()
