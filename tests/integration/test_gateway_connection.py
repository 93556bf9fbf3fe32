"""What clients do wrong, and what is left of them afterwards. Over real sockets."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import json
import os
import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import psutil
import pytest

from engine.types import Item
from gateway.app import Gateway
from gateway.wire.codec import MAX_BINARY_BYTES, FrameHeader, MessageType, encode_binary
from tests.fakes.engine import FakeEngine
from tests.fakes.gateway import running_gateway, wait_until
from tests.fakes.picture_headers import jpeg_header
from tests.fakes.raw_websocket import BINARY, PING, RawWebSocket
from tests.fakes.uvloop_runner import on_uvloop

pytestmark = pytest.mark.integration

HELLO = b'{"type":"hello"}'
OPEN = b'{"type":"open","stream":1,"model":"fake"}'
PICTURE = jpeg_header(64, 64)


def frame(seq: int) -> bytes:
    return encode_binary(FrameHeader(type=MessageType.FRAME, stream=1, seq=seq, t_us=0), PICTURE)


@asynccontextmanager
async def greeted(
    gateway: Gateway, *, receive_buffer_bytes: int | None = None
) -> AsyncIterator[RawWebSocket]:
    with RawWebSocket(gateway.port, receive_buffer_bytes=receive_buffer_bytes) as client:
        assert b" 101 " in await client.handshake()
        await client.send(HELLO)
        await client.receive()
        yield client


async def refusal(client: RawWebSocket) -> tuple[str, int]:
    """Slug of the error message and the close code after it."""
    _, payload = await client.receive()
    problem = json.loads(payload)["problem"]
    code = await client.receive_close()
    return str(problem["type"]).rsplit(":", 1)[-1], code


@pytest.mark.parametrize(
    ("data", "opcode", "slug", "code"),
    [
        (b"{", 1, "invalid-message", 1007),
        (b'{"type":"hello"', 1, "invalid-message", 1007),
        (b'{"type":"open","stream":1,"model":"\xff"}', 1, "invalid-message", 1007),
        (b'{"type":"hello","x":' + b"[" * 50_000, 1, "invalid-message", 1007),
        (b"x" * 70_000, 1, "invalid-message", 1009),
        (b"short", 2, "invalid-message", 1002),
        (b'{"type":"ping","t":1}' + b" " * 32, 2, "invalid-message", 1002),
        (b"x" * (MAX_BINARY_BYTES + 1), 2, "frame-too-large", 1009),
        (b"", 0, "invalid-message", 1002),  # a continuation of nothing
        (b"", 3, "invalid-message", 1002),  # a reserved opcode
    ],
    ids=lambda value: value[:8].hex() if isinstance(value, bytes) else str(value),
)
def test_malformed_input_is_told_and_closed(data: bytes, opcode: int, slug: str, code: int) -> None:
    @on_uvloop
    async def run() -> None:
        async with running_gateway() as gateway:
            async with greeted(gateway) as client:
                await client.send(data, opcode)
                assert await refusal(client) == (slug, code)
            await wait_until(lambda: gateway.connections.statistics().open == 0)
            assert gateway.connections.statistics().closed == {code: 1}

    run()


@on_uvloop
async def test_declared_size_is_refused_before_the_bytes_come() -> None:
    async with running_gateway() as gateway, greeted(gateway) as client:
        await client.send(b"", BINARY, declared=2**40)
        assert await refusal(client) == ("frame-too-large", 1009)


@on_uvloop
async def test_binary_before_hello_and_silence_are_closed() -> None:
    async with running_gateway(limits={"hello_timeout_s": 0.2}) as gateway:
        with RawWebSocket(gateway.port) as hasty:
            await hasty.handshake()
            await hasty.send(frame(1), BINARY)
            assert (await refusal(hasty))[1] == 4503
        with RawWebSocket(gateway.port) as silent:
            await silent.handshake()
            assert (await refusal(silent))[1] == 4502


@on_uvloop
async def test_flood_of_pings_is_ended_by_quota() -> None:
    limits = {"max_messages_per_s": 20}
    async with running_gateway(limits=limits) as gateway, greeted(gateway) as client:
        for _ in range(60):
            await client.send(b"", PING)
        assert await client.receive_close() == 4505


@on_uvloop
async def test_accepted_sockets_have_the_recipe() -> None:
    limits = {"tcp_user_timeout_s": 7}
    async with running_gateway(limits=limits) as gateway, greeted(gateway):
        (connection,) = gateway.connections
        transport = connection._socket._request.transport
        assert transport is not None
        sock = transport.get_extra_info("socket")
        assert sock.getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY)
        assert sock.getsockopt(socket.IPPROTO_TCP, 25) == 16 * 1024
        assert sock.getsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT) == 7000
        assert sock.getsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE)
        assert transport.get_write_buffer_limits() == (1024, 32 * 1024)


@on_uvloop
async def test_sockets_beyond_the_processs_bound_are_ended_at_once(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("gateway.net.server.PLAIN_CONNECTIONS", 1)
    async with running_gateway(limits={"max_connections": 1}) as gateway:
        with RawWebSocket(gateway.port) as first, RawWebSocket(gateway.port) as second:
            await first.handshake()
            await second.connect()
            await second.send_bytes(b"GET /healthz HTTP/1.1\r\n")
            with RawWebSocket(gateway.port) as third:
                await third.connect()
                with pytest.raises(ConnectionError):
                    await third.receive()
    assert "AssertionError" not in caplog.text


async def leave_rudely(gateway: Gateway, cycle: int) -> None:
    """Connect and reset at one of five moments."""
    client = RawWebSocket(gateway.port)
    try:
        if cycle % 5 == 0:
            await client.connect()
            await client.send_bytes(b"GET /v1/stream HTTP/1.1\r\nHost: ")
            return
        await client.handshake()
        if cycle % 5 >= 2:
            await client.send(HELLO)
        if cycle % 5 >= 3:
            await client.send(OPEN)
            await client.send(frame(cycle), BINARY)
        if cycle % 5 == 4:
            await client.send(b"half of it", declared=1000)
    finally:
        client.reset()


@on_uvloop
async def test_two_hundred_resets_leave_no_task_socket_or_session(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async with running_gateway() as gateway:
        await leave_rudely(gateway, 1)
        await wait_until(lambda: gateway.connections.statistics().open == 0)
        gc.collect()
        num_tasks, num_files = len(asyncio.all_tasks()), len(os.listdir("/proc/self/fd"))
        for cycle in range(200):
            await leave_rudely(gateway, cycle)
        await wait_until(lambda: gateway.connections.statistics().open == 0)
        await wait_until(lambda: len(asyncio.all_tasks()) <= num_tasks)
        await wait_until(lambda: len(os.listdir("/proc/self/fd")) <= num_files)
        assert gateway.sessions.statistics().sessions == 0
        gateway.sessions.check_integrity()
        assert len(gateway.engine.statistics().models) == 1
        assert gateway.engine.statistics().models[0].lanes == 0
    assert "Traceback" not in caplog.text


def bulky(item: Item) -> bytes:
    return json.dumps({"padding": "x" * 50_000}).encode()


@asynccontextmanager
async def stalled(gateway: Gateway, num_frames: int) -> AsyncIterator[RawWebSocket]:
    """A client that sends frames and reads nothing any more."""
    async with greeted(gateway, receive_buffer_bytes=4096) as client:
        await client.send(OPEN)
        for seq in range(num_frames):
            await client.send(frame(seq), BINARY)
            await asyncio.sleep(0.01)
        yield client


@on_uvloop
async def test_client_that_uploads_but_never_reads_is_aborted_and_memory_stays_flat() -> None:
    limits = {"send_timeout_s": 0.5, "max_messages_per_s": 100_000}
    async with running_gateway(FakeEngine(respond=bulky), limits=limits) as gateway:
        loop = asyncio.get_running_loop()
        async with stalled(gateway, num_frames=8) as client:
            rss = psutil.Process().memory_info().rss
            started_at, largest_outbox = loop.time(), 0
            with contextlib.suppress(ConnectionError):
                while gateway.connections.statistics().open:
                    await client.send(b"x" * 100, PING)
                    await asyncio.sleep(0.002)
                    outbox_bytes = gateway.sessions.statistics().outbox_bytes
                    largest_outbox = max(largest_outbox, outbox_bytes)
            took_s = loop.time() - started_at
        await wait_until(lambda: gateway.connections.statistics().open == 0)
        assert gateway.connections.statistics().closed == {4008: 1}
        assert took_s < 5.0  # the time-out, and two looks a second apart
        assert 0 < largest_outbox < 1024 * 1024
        assert psutil.Process().memory_info().rss - rss < 8 * 1024 * 1024
        assert gateway.sessions.statistics().sessions == 0


@on_uvloop
async def test_stalled_client_does_not_hold_up_another() -> None:
    async with (
        running_gateway(FakeEngine(respond=bulky)) as gateway,
        stalled(gateway, num_frames=8),
        greeted(gateway) as healthy,
    ):
        await healthy.send(b'{"type":"ping","t":5}')
        _, pong = await healthy.receive()
        assert json.loads(pong)["t"] == 5


@on_uvloop
async def test_shutdown_with_a_stalled_client_is_bounded() -> None:
    async with (
        running_gateway(FakeEngine(respond=bulky)) as gateway,
        stalled(gateway, num_frames=8),
    ):
        loop = asyncio.get_running_loop()
        started_at = loop.time()
        await gateway.aclose()
        assert loop.time() - started_at < 2.2
