"""A gateway behind networks that are slow, silent, or gone. Over real sockets and a chaos proxy."""

from __future__ import annotations

import asyncio
import contextlib
import json
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any

import pytest

from engine.types import Item
from gateway.app import Gateway
from gateway.wire.codec import FrameHeader, MessageType, encode_binary, split_binary
from tests.fakes.chaos_proxy import ChaosProxy, Toxics
from tests.fakes.engine import FakeEngine
from tests.fakes.gateway import running_gateway, size_of, wait_until
from tests.fakes.picture_headers import jpeg_header
from tests.fakes.raw_websocket import BINARY, CLOSE, TEXT, RawWebSocket
from tests.fakes.uvloop_runner import on_uvloop

pytestmark = pytest.mark.integration

PICTURE = jpeg_header(64, 64)
OFTEN: dict[str, Any] = {"ping_interval_s": 0.2, "pong_timeout_s": 1.0}


def now_us() -> int:
    return time.monotonic_ns() // 1000


def bulky(item: Item) -> bytes:
    return json.dumps({"padding": "x" * 50_000}).encode()


class Camera:
    """A client with one stream; what it is told is kept, pings are answered at once."""

    def __init__(self, socket: RawWebSocket) -> None:
        self.socket = socket
        self.told: list[dict[str, Any]] = []
        self.close_code: int | None = None
        self.is_reading = asyncio.Event()
        self.is_reading.set()
        self.num_sent = 0
        self._sending = asyncio.Lock()  # a frame once begun is finished

    async def send(self, data: bytes, opcode: int = TEXT) -> None:
        async with self._sending:
            await self.socket.send(data, opcode)

    async def film(self, payload: bytes = PICTURE) -> None:
        """Send the next frame, in pieces if it is large."""
        seq, self.num_sent = self.num_sent, self.num_sent + 1
        header = FrameHeader(type=MessageType.FRAME, stream=1, seq=seq, t_us=now_us())
        for piece in split_binary(header, payload):
            await self.send(piece, BINARY)
            await asyncio.sleep(0)

    def of(self, kind: str) -> list[dict[str, Any]]:
        return [message for message in self.told if message["type"] == kind]

    async def read(self) -> None:
        with contextlib.suppress(ConnectionError, TimeoutError):
            while True:
                await self.is_reading.wait()
                opcode, payload = await self.socket.receive()
                if opcode == CLOSE:
                    self.close_code = int.from_bytes(payload[:2], "big")
                    return
                message = json.loads(payload)
                self.told.append(message)
                if message["type"] == "ping":
                    pong = {"type": "pong", "t": message["t"], "now_us": now_us()}
                    await self.send(json.dumps(pong).encode())
                elif message["type"] in ("result", "drop"):
                    seq = message.get("seq", message.get("to"))
                    await self.send(b'{"type":"ack","stream":1,"seq":%d}' % seq)


@asynccontextmanager
async def camera(
    port: int, *, receive_buffer_bytes: int | None = None, **options: Any
) -> AsyncIterator[Camera]:
    """A greeted client whose stream is open."""
    with RawWebSocket(
        port, receive_buffer_bytes=receive_buffer_bytes, send_buffer_bytes=32_768
    ) as socket:
        await socket.handshake()
        client = Camera(socket)
        await socket.send(b'{"type":"hello"}')
        opening = {"type": "open", "stream": 1, "model": "fake", "options": options}
        await socket.send(json.dumps(opening).encode())
        reading = asyncio.create_task(client.read(), name="camera reads")
        try:
            await wait_until(lambda: bool(client.of("opened")))
            yield client
        finally:
            reading.cancel()
            await asyncio.wait({reading})


@asynccontextmanager
async def proxied(
    engine: FakeEngine | None = None, **limits: Any
) -> AsyncIterator[tuple[Gateway, ChaosProxy]]:
    tables = {"resume_window_s": 0, **limits}
    async with (
        running_gateway(engine, limits=tables) as gateway,
        ChaosProxy(gateway.port, seed=1) as proxy,
    ):
        yield gateway, proxy


def codes(gateway: Gateway) -> dict[int, int]:
    return gateway.connections.statistics().closed


async def until_closed(gateway: Gateway) -> None:
    await wait_until(lambda: gateway.connections.statistics().open == 0)


@on_uvloop
async def test_a_peer_in_a_black_hole_is_given_up() -> None:
    async with proxied(**OFTEN) as (gateway, proxy), camera(proxy.port) as client:
        await client.film()
        await wait_until(lambda: bool(client.of("result")))
        proxy.up = proxy.down = Toxics(is_black_hole=True)
        await until_closed(gateway)
        assert codes(gateway) == {4009: 1}
        assert gateway.sessions.statistics().sessions == 0


@on_uvloop
async def test_a_slow_upload_of_large_frames_is_no_missing_pong() -> None:
    limits = {**OFTEN, "pong_timeout_s": 2.0}
    async with proxied(**limits) as (gateway, proxy), camera(proxy.port, policy="fifo") as client:
        proxy.up = Toxics(bytes_per_s=600_000)
        for _ in range(3):
            await client.film(PICTURE + bytes(600_000))
        await wait_until(lambda: len(client.of("result")) == 3)
        assert len(client.of("ping")) >= 2
        assert codes(gateway) == {}


@on_uvloop
async def test_pings_are_answered_while_the_engine_is_stuck() -> None:
    engine = FakeEngine()
    engine.block()
    async with proxied(engine) as (_, proxy), camera(proxy.port) as client:
        await client.film()
        await client.socket.send(b'{"type":"ping","t":5}')
        await wait_until(lambda: bool(client.of("pong")))


@on_uvloop
async def test_dense_large_frames_all_get_through() -> None:
    async with proxied() as (_, proxy), camera(proxy.port, policy="lossless") as client:
        for count in range(1, 13):
            await client.film(PICTURE + bytes(300_000))
            await wait_until(lambda count=count: len(client.of("result")) >= count - 4)  # type: ignore[misc]
        await wait_until(lambda: len(client.of("result")) == 12)
        assert [m["seq"] for m in client.of("result")] == list(range(12))


@on_uvloop
async def test_a_reader_on_a_slow_line_gets_the_newest_results_and_keeps_its_connection() -> None:
    async with proxied(FakeEngine(respond=bulky)) as (gateway, proxy):
        async with camera(proxy.port, receive_buffer_bytes=16_384) as client:
            proxy.down = Toxics(bytes_per_s=400_000)
            for _ in range(40):
                await client.film()
                await asyncio.sleep(0.03)
            await wait_until(lambda: received(client) == client.num_sent)
            superseded = sum(d["count"] for d in client.of("drop") if d["reason"] == "superseded")
            assert superseded > 5
            assert len(client.of("result")) > 5
            gateway.sessions.check_integrity()
        assert codes(gateway) == {}


def received(client: Camera) -> int:
    """Receipts, each frame's one."""
    refused = sum("seq" in error for error in client.of("error"))
    dropped = sum(int(drop["count"]) for drop in client.of("drop"))
    return len(client.of("result")) + dropped + refused


@on_uvloop
async def test_after_a_pause_the_viewer_sees_what_is_new() -> None:
    async with (
        running_gateway(FakeEngine(respond=bulky)) as gateway,
        camera(gateway.port, receive_buffer_bytes=8_192) as client,
    ):
        await client.film()
        await wait_until(lambda: bool(client.of("result")))
        client.is_reading.clear()
        await client.film()  # wakes the reader, which then pauses
        for _ in range(6):  # as many as its credit lets it send
            await client.film()
            await asyncio.sleep(0.05)
        resumed_us = now_us()
        client.told.clear()
        client.is_reading.set()
        await client.film()
        await wait_until(lambda: any(m["t_us"] > resumed_us - 50_000 for m in client.of("result")))
        # What the kernels held already comes first; of what the gateway held, one is left.
        ages_ms = [(resumed_us - message["t_us"]) / 1e3 for message in client.of("result")]
        assert sum(age_ms > 100 for age_ms in ages_ms) <= 6
        assert client.of("drop")


@on_uvloop
async def test_a_deadline_counts_the_time_on_the_way() -> None:
    engine = FakeEngine(delay_s=0.15, respond=size_of)
    async with (
        proxied(engine, **OFTEN) as (_, proxy),
        camera(proxy.port, policy="fifo", deadline_ms=300) as client,
    ):
        await wait_until(lambda: len(client.of("ping")) >= 4)
        await client.film()
        await wait_until(lambda: bool(client.of("result")))
        proxy.up = Toxics(latency_s=0.25)
        await client.film()
        await wait_until(lambda: bool(client.of("drop")))
        assert client.of("drop")[0]["reason"] == "deadline"


@on_uvloop
async def test_the_kernel_and_the_pings_tell_of_the_network() -> None:
    async with proxied(**OFTEN) as (gateway, proxy), camera(proxy.port) as client:
        proxy.up = Toxics(latency_s=0.02, jitter_s=0.06)
        await client.film()
        await wait_until(lambda: len(client.of("ping")) >= 6)
        await wait_until(lambda: gateway.connections.statistics().segments_out > 0)
        (connection,) = gateway.connections
        assert connection.network.jitter_ms > 2
        now = gateway.connections.statistics()
        assert now.networks == (connection.network,)
        assert 0 <= connection.network.loss <= 1


def reset_after_close(client: RawWebSocket) -> None:
    client.reset()


def vanish(client: RawWebSocket) -> None:
    client.__exit__()


@pytest.mark.parametrize("leave", [reset_after_close, vanish])
def test_leaving_in_the_closing_handshake_is_no_fault_of_ours(
    leave: Callable[[RawWebSocket], None], caplog: pytest.LogCaptureFixture
) -> None:
    @on_uvloop
    async def run() -> None:
        async with running_gateway(limits={"resume_window_s": 0}) as gateway:
            for _ in range(6):
                client = RawWebSocket(gateway.port)
                await client.handshake()
                await client.send(b'{"type":"hello"}')
                await client.send(b"\x03\xe8", CLOSE)
                leave(client)
            for _ in range(6):
                client = RawWebSocket(gateway.port)
                await client.handshake()
                await client.send(b"{")  # closed by the gateway
                leave(client)
            await until_closed(gateway)

    run()
    assert "Traceback" not in caplog.text


@on_uvloop
async def test_a_result_for_a_client_that_has_left_harms_nobody() -> None:
    engine = FakeEngine(delay_s=0.05, concurrency=8, respond=size_of)
    async with proxied(engine) as (gateway, proxy):
        for _ in range(10):
            async with camera(proxy.port) as client:
                await client.film()
                proxy.reset_all()
        await until_closed(gateway)
        await asyncio.sleep(0.1)
        gateway.sessions.check_integrity()
        async with camera(proxy.port) as client:
            await client.film()
            await wait_until(lambda: bool(client.of("result")))


@on_uvloop
async def test_places_are_free_again_after_every_way_to_leave() -> None:
    async with proxied(max_connections=2) as (gateway, proxy):
        for cycle in range(15):
            async with camera(proxy.port) as client:
                await client.film()
                if cycle % 3 == 0:
                    proxy.reset_all()
                elif cycle % 3 == 1:
                    proxy.half_close_all(towards_client=False)
            await until_closed(gateway)
        async with camera(proxy.port), camera(proxy.port):
            assert gateway.connections.statistics().open == 2
        assert gateway.connections.statistics().refused == 0


@on_uvloop
async def test_a_frame_cut_in_its_middle_was_never_received() -> None:
    async with proxied() as (gateway, proxy), camera(proxy.port) as client:
        header = FrameHeader(type=MessageType.FRAME, stream=1, seq=0, t_us=0)
        whole = encode_binary(header, PICTURE + bytes(1000))
        await client.socket.send(whole[:500], BINARY, declared=len(whole))
        await asyncio.sleep(0.05)
        proxy.reset_all()
        await until_closed(gateway)
        assert gateway.sessions.statistics().models["fake"].received == 0
