"""What a hostile client may not do: hold the loop, go round the limits, learn what we are.

Over real sockets.
"""

from __future__ import annotations

import asyncio
import io
import json
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress

import aiohttp
import pytest

from gateway.app import Gateway
from gateway.wire.codec import FrameHeader, MessageType, encode_binary
from tests.fakes.engine import FakeEngine
from tests.fakes.gateway import running_gateway, size_of, wait_until
from tests.fakes.picture_headers import jpeg_header
from tests.fakes.raw_websocket import BINARY, RawWebSocket
from tests.fakes.uvloop_runner import on_uvloop

pytestmark = pytest.mark.integration

HELLO = b'{"type":"hello"}'
FORM = {"Content-Type": "multipart/form-data; boundary=x"}
EMPTY_CONTINUATION = b"\x00\x80mask"
LONGEST_PAUSE_S = 0.15


@asynccontextmanager
async def no_pause(limit_s: float = LONGEST_PAUSE_S) -> AsyncIterator[None]:
    """The loop, which the gateway shares with this test, never works for longer without a break.

    The thread's own time counts: what else the machine does in between is not the gateway's doing.
    """
    longest = 0.0

    async def tick() -> None:
        nonlocal longest
        while True:
            before = time.thread_time()
            await asyncio.sleep(0.005)
            longest = max(longest, time.thread_time() - before)

    ticker = asyncio.create_task(tick())
    await asyncio.sleep(0.02)
    try:
        yield
    finally:
        ticker.cancel()
        await asyncio.wait({ticker})
    assert longest < limit_s


@asynccontextmanager
async def greeted(gateway: Gateway) -> AsyncIterator[RawWebSocket]:
    with RawWebSocket(gateway.port) as client:
        assert b" 101 " in await client.handshake()
        await client.send(HELLO)
        await client.receive()
        yield client


@pytest.mark.parametrize(
    "shape", [b"--x\r\n\r\n\r\n", b"\r\n", b"--x\r\nA: b\r\n\r\n"], ids=["parts", "lines", "heads"]
)
def test_form_of_many_small_things_does_not_hold_the_loop(shape: bytes) -> None:
    @on_uvloop
    async def run() -> None:
        body = shape * (3 * 1024 * 1024 // len(shape)) + b"--x--\r\n"
        async with running_gateway() as gateway, aiohttp.ClientSession() as client, no_pause():
            url = f"{gateway.url}v1/infer/fake"
            async with client.post(url, data=io.BytesIO(body), headers=FORM) as response:
                assert response.status == 400

    run()


@on_uvloop
async def test_flood_of_empty_fragments_is_ended_by_quota() -> None:
    async with running_gateway() as gateway, greeted(gateway) as client, no_pause():
        await client.send_bytes(b"\x02\x80mask")
        with suppress(ConnectionError):
            for _ in range(200):
                await client.send_bytes(EMPTY_CONTINUATION * 5000)
        with suppress(ConnectionError):
            assert await client.receive_close() == 4505
        await wait_until(lambda: gateway.connections.statistics().open == 0)
        assert gateway.connections.statistics().closed == {4505: 1}


@on_uvloop
async def test_unmasked_frame_is_told_and_closed() -> None:
    async with running_gateway() as gateway, greeted(gateway) as client:
        ping = b'{"type":"ping","t":1}'
        await client.send_bytes(bytes((0x81, len(ping))) + ping)
        _, payload = await client.receive()
        assert json.loads(payload)["problem"]["detail"] == "frames of a client are masked"
        assert await client.receive_close() == 1002


@on_uvloop
async def test_frames_right_behind_the_handshake_are_read() -> None:
    async with running_gateway() as gateway:
        with RawWebSocket(gateway.port) as client:
            await client.connect()
            request = (
                f"GET /v1/stream HTTP/1.1\r\nHost: 127.0.0.1:{gateway.port}\r\n"
                "Upgrade: websocket\r\nConnection: Upgrade\r\nSec-WebSocket-Version: 13\r\n"
                "Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\n\r\n"
            ).encode()
            masked_hello = bytes((0x81, 0x80 | len(HELLO))) + bytes(4) + HELLO
            await client.send_bytes(request + masked_hello[:9])
            await asyncio.sleep(0.05)
            await client.send_bytes(masked_hello[9:])
            head = b""
            while not head.endswith(b"\r\n\r\n"):
                head += await client._exactly(1)
            _, payload = await client.receive()
            assert json.loads(payload)["type"] == "welcome"
            await client.send_bytes(bytes((0x81, 0)))  # the guard knows where a frame begins
            assert await client.receive_close() == 1002


@on_uvloop
async def test_client_that_ignores_its_credit_is_closed() -> None:
    engine = FakeEngine(respond=size_of)
    engine.block()
    async with running_gateway(engine) as gateway, greeted(gateway) as client:
        await client.send(
            b'{"type":"open","stream":1,"model":"fake","options":{"policy":"lossless"}}'
        )
        for seq in range(32 + 2 * 32 + 8):
            header = FrameHeader(type=MessageType.FRAME, stream=1, seq=seq, t_us=0)
            with suppress(ConnectionError):
                await client.send(encode_binary(header, jpeg_header(64, 64)), BINARY)
            await asyncio.sleep(0)
        assert await client.receive_close() == 4505


async def answer_to(gateway: Gateway, request: bytes) -> tuple[bytes, bytes]:
    """Head and body of the answer, or of all that comes until the socket is closed."""
    reader, writer = await asyncio.open_connection("127.0.0.1", gateway.port)
    writer.write(request)
    async with asyncio.timeout(20):
        answer = await reader.read()
    writer.close()
    head, _, body = answer.partition(b"\r\n\r\n")
    return head, body


@pytest.mark.parametrize(
    "request_",
    [
        b"SECRET nonsense\r\n\r\n",
        b"GET / HTTP/1.1\r\nSECRET\r\n\r\n",
        b"GET / HTTP/9.9\r\nHost: x\r\nX-Key: SECRET\r\n\r\n",
        b"GET / HTTP/1.1\r\nX-Key: SECRET" + b"x" * 20_000 + b"\r\n\r\n",
        b"\x16\x03\x01\x02\x00SECRET",
    ],
    ids=["line", "header", "version", "long", "tls"],
)
def test_malformed_request_gets_a_problem_that_repeats_nothing(request_: bytes) -> None:
    @on_uvloop
    async def run() -> None:
        async with running_gateway() as gateway:
            head, body = await answer_to(gateway, request_)
            assert b"400" in head.split(b"\r\n")[0]
            assert b"application/problem+json" in head
            assert json.loads(body)["type"] == "urn:clawstream:problem:invalid-message"
            assert b"nosniff" in head
            assert b"SECRET" not in head + body
            check_server(head)

    run()


def check_server(head: bytes) -> None:
    servers = [line for line in head.split(b"\r\n") if line.lower().startswith(b"server:")]
    assert servers == [b"Server: clawstream"]


@on_uvloop
async def test_body_that_breaks_off_its_encoding_is_a_problem_not_a_fault(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async with running_gateway() as gateway:
        head, body = await answer_to(
            gateway,
            b"POST /v1/infer/fake HTTP/1.1\r\nHost: 127.0.0.1\r\nTransfer-Encoding: chunked\r\n"
            b"Connection: close\r\n\r\nSECRET\r\n",
        )
        assert b"400" in head.split(b"\r\n")[0]
        assert json.loads(body)["type"] == "urn:clawstream:problem:invalid-message"
    assert "SECRET" not in caplog.text
    assert "Traceback" not in caplog.text


@pytest.mark.parametrize("path", ["", "healthz", "nowhere", "v1/stream", "v1/models"])
def test_no_answer_names_versions_of_ours(path: str) -> None:
    @on_uvloop
    async def run() -> None:
        async with running_gateway() as gateway, aiohttp.ClientSession() as client:
            async with client.get(gateway.url + path) as response:
                assert response.headers["Server"] == "clawstream"
            async with client.ws_connect(f"{gateway.url}v1/stream") as socket:
                assert socket._response.headers["Server"] == "clawstream"

    run()
