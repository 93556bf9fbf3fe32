"""The bad network is as bad as it was asked to be. Over real sockets."""

from __future__ import annotations

import asyncio
import json
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, closing

import pytest

from tests.fakes.chaos_proxy import ChaosProxy, Toxics, apply
from tests.fakes.gateway import wait_until
from tests.fakes.uvloop_runner import on_uvloop

pytestmark = pytest.mark.integration

Streams = tuple[asyncio.StreamReader, asyncio.StreamWriter]


async def echo(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    with closing(writer):
        while data := await reader.read(1 << 16):
            writer.write(data)
            await writer.drain()


@asynccontextmanager
async def through_a_proxy(**toxics: object) -> AsyncIterator[tuple[ChaosProxy, Streams]]:
    """A connection to an echo server, with these toxics on what comes back."""
    server = await asyncio.start_server(echo, "127.0.0.1", 0)
    async with server, ChaosProxy(server.sockets[0].getsockname()[1], seed=7) as proxy:
        apply(proxy, {"down": toxics})
        streams = await asyncio.open_connection("127.0.0.1", proxy.port)
        try:
            yield proxy, streams
        finally:
            streams[1].transport.abort()


async def time_of_echo(streams: Streams, data: bytes) -> float:
    loop = asyncio.get_running_loop()
    started_at = loop.time()
    streams[1].write(data)
    async with asyncio.timeout(10):
        assert await streams[0].readexactly(len(data)) == data
    return loop.time() - started_at


@on_uvloop
async def test_a_perfect_network_changes_nothing() -> None:
    async with through_a_proxy() as (_, streams):
        assert await time_of_echo(streams, bytes(range(256)) * 2000) < 5.0


@on_uvloop
async def test_latency_delays_every_byte() -> None:
    async with through_a_proxy(latency_s=0.15) as (_, streams):
        assert 0.14 < await time_of_echo(streams, b"x") < 5.0


@on_uvloop
async def test_jitter_never_changes_the_order() -> None:
    async with through_a_proxy(jitter_s=0.03) as (_, streams):
        for number in range(20):
            streams[1].write(b"%06d" % number)
            await asyncio.sleep(0.003)
        data = await streams[0].readexactly(120)
        assert data == b"".join(b"%06d" % number for number in range(20))


async def test_the_same_seed_draws_the_same_delays() -> None:
    toxics = Toxics(latency_s=0.1, jitter_s=0.2)
    first, second = (
        [proxy.draw_delay_s(toxics) for _ in range(50)]
        for proxy in (ChaosProxy(1, seed=3), ChaosProxy(1, seed=3))
    )
    assert first == second
    assert all(0.1 <= delay_s <= 0.3 for delay_s in first)


@on_uvloop
async def test_the_rate_is_limited_evenly() -> None:
    async with through_a_proxy(bytes_per_s=100_000) as (_, streams):
        assert 0.4 < await time_of_echo(streams, bytes(50_000)) < 1.0


@on_uvloop
async def test_slices_come_one_by_one() -> None:
    async with through_a_proxy(slice_bytes=3, slice_gap_s=0.05) as (_, streams):
        streams[1].write(b"abcdefgh")
        assert [await streams[0].read(100) for _ in range(3)] == [b"abc", b"def", b"gh"]


@on_uvloop
async def test_a_stall_holds_everything_back_and_lets_it_go_again() -> None:
    async with through_a_proxy(is_stalled=True) as (proxy, streams):
        streams[1].write(b"held")
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(streams[0].read(10), 0.1)
        proxy.down = Toxics()
        assert await streams[0].read(10) == b"held"


@on_uvloop
async def test_a_stalled_reader_fills_the_senders_buffers() -> None:
    async with through_a_proxy() as (proxy, streams):
        proxy.up = Toxics(is_stalled=True)
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(pour(streams[1]), 0.5)


async def pour(writer: asyncio.StreamWriter) -> None:
    while True:
        writer.write(bytes(1 << 16))
        await writer.drain()


@on_uvloop
async def test_a_black_hole_answers_nothing_and_closes_nothing() -> None:
    async with through_a_proxy() as (proxy, streams):
        await time_of_echo(streams, b"before")
        proxy.up = proxy.down = Toxics(is_black_hole=True)
        streams[1].write(b"into the void")
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(streams[0].read(10), 0.1)
        assert proxy.num_open == 1


@on_uvloop
async def test_a_half_close_ends_one_direction() -> None:
    async with through_a_proxy() as (proxy, streams):
        await time_of_echo(streams, b"before")
        proxy.half_close_all()
        assert await streams[0].read(10) == b""
        streams[1].write(b"still taken")
        assert proxy.num_open == 1


@on_uvloop
async def test_a_reset_is_no_orderly_end() -> None:
    async with through_a_proxy() as (proxy, streams):
        await time_of_echo(streams, b"before")
        apply(proxy, {"reset": True})
        with pytest.raises(ConnectionResetError):
            await streams[0].read(10)
        await wait_until(lambda: proxy.num_open == 0)


@on_uvloop
async def test_a_message_is_cut_in_its_middle() -> None:
    async with through_a_proxy() as (proxy, streams):
        await time_of_echo(streams, b"before")
        proxy.cut_after(4)
        streams[1].write(b"truncated")
        with pytest.raises((ConnectionResetError, asyncio.IncompleteReadError)):
            await streams[0].readexactly(9)


@on_uvloop
async def test_refused_connections_are_reset() -> None:
    async with through_a_proxy() as (proxy, _):
        proxy.is_refusing = True
        reader, writer = await asyncio.open_connection("127.0.0.1", proxy.port)
        with pytest.raises(ConnectionResetError):
            await reader.read(1)
        writer.transport.abort()


@on_uvloop
async def test_it_stops_by_itself() -> None:
    async with ChaosProxy(1, lifetime_s=0.05) as proxy:
        port = proxy.port
        await asyncio.sleep(0.15)
        with pytest.raises(ConnectionRefusedError):
            await asyncio.open_connection("127.0.0.1", port)


@on_uvloop
async def test_it_runs_in_a_process_of_its_own_and_takes_orders() -> None:
    server = await asyncio.start_server(echo, "127.0.0.1", 0)
    port = server.sockets[0].getsockname()[1]
    async with server:
        process = await asyncio.create_subprocess_exec(
            *(sys.executable, "-m", "tests.fakes.chaos_proxy", str(port), "--seconds", "20"),
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
        )
        assert process.stdin is not None
        assert process.stdout is not None
        streams = await asyncio.open_connection("127.0.0.1", int(await process.stdout.readline()))
        await time_of_echo(streams, b"quick")
        process.stdin.write(json.dumps({"down": {"latency_s": 0.2}}).encode() + b"\n")
        await asyncio.sleep(0.1)
        assert await time_of_echo(streams, b"slow") > 0.19
        process.stdin.close()
        assert await asyncio.wait_for(process.wait(), 10) == 0
        streams[1].transport.abort()
