"""Whole answers over HTTP to readers that do not read, over real sockets."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest

from gateway.app import Gateway
from tests.fakes.engine import FakeEngine
from tests.fakes.gateway import running_gateway, wait_until
from tests.fakes.picture_headers import jpeg_header
from tests.fakes.uvloop_runner import on_uvloop

pytestmark = pytest.mark.integration

PICTURE = jpeg_header(320, 240)
REQUEST = b"POST /v1/infer/fake HTTP/1.1\r\nHost: localhost\r\nContent-Length: %d\r\n\r\n%b"
# More than the buffers of both kernels take.
LARGE_BYTES = 16_000_000


def large_engine() -> FakeEngine:
    return FakeEngine(respond=lambda item: b'"' + b"x" * LARGE_BYTES + b'"')


@asynccontextmanager
async def asked(gateway: Gateway) -> AsyncIterator[asyncio.StreamReader]:
    """A connection on which a large answer is on its way, and nothing is read yet."""
    reader, writer = await asyncio.open_connection("127.0.0.1", gateway.port, limit=1024)
    writer.write(REQUEST % (len(PICTURE), PICTURE))
    try:
        yield reader
    finally:
        writer.transport.abort()


def waiting_bytes(gateway: Gateway) -> int:
    return gateway.connections.output_budget.meter.used


@on_uvloop
async def test_a_reader_that_stalls_is_cut_off_and_holds_nothing_any_more() -> None:
    async with (
        running_gateway(large_engine(), limits={"send_timeout_s": 0.2}) as gateway,
        asked(gateway) as reader,
    ):
        await wait_until(lambda: waiting_bytes(gateway) > LARGE_BYTES)
        await wait_until(lambda: waiting_bytes(gateway) == 0)
        with pytest.raises((asyncio.IncompleteReadError, ConnectionResetError)):
            await reader.readexactly(LARGE_BYTES)


@on_uvloop
async def test_a_reader_that_reads_gets_all_of_it() -> None:
    async with running_gateway(large_engine()) as gateway, asked(gateway) as reader:
        await wait_until(lambda: waiting_bytes(gateway) > LARGE_BYTES)
        head = await reader.readuntil(b"\r\n\r\n")
        assert head.startswith(b"HTTP/1.1 200 ")
        assert len(await reader.readexactly(LARGE_BYTES)) == LARGE_BYTES
        await wait_until(lambda: waiting_bytes(gateway) == 0)


@on_uvloop
async def test_answers_that_wait_share_the_bytes_of_the_process() -> None:
    limits = {"max_outboxes_bytes": 5 * LARGE_BYTES, "max_outbox_bytes": 65536}
    async with (
        running_gateway(large_engine(), limits=limits) as gateway,
        asked(gateway),
        asked(gateway),
        asked(gateway),
    ):
        budget = gateway.connections.output_budget
        await wait_until(lambda: budget.num_relieved == 1)
        assert 4 * LARGE_BYTES < waiting_bytes(gateway) < 5 * LARGE_BYTES
