"""The client and the real gateway over real sockets: the receipts of both sides agree."""

from __future__ import annotations

import asyncio

import pytest

from engine.errors import InvalidInput
from engine.types import Item
from gateway.client import (
    AuthError,
    Client,
    FrameStream,
    StreamError,
    connect,
    frames_from_bytes,
)
from tests.fakes.engine import FakeEngine
from tests.fakes.gateway import running_gateway, size_of
from tests.fakes.stream_server import picture

pytestmark = pytest.mark.integration


async def read(stream: FrameStream) -> list[int]:
    return [result.seq async for result in stream]


def stream_of(
    client: Client, count: int, policy: str, *, fps: float | None = None, size_bytes: int = 100
) -> FrameStream:
    pictures = [picture() + bytes(size_bytes)] * count
    source = frames_from_bytes(pictures, fps=fps)
    return client.stream_frames(source, model="fake", policy=policy, deadline_ms=5000)


@pytest.mark.parametrize("policy", ["fifo", "lossless"])
async def test_every_frame_of_a_waiting_source_is_answered(policy: str) -> None:
    async with running_gateway() as gateway, connect(gateway.url) as client:
        stream = stream_of(client, 300, policy)
        assert await read(stream) == list(range(300))
    assert stream.statistics.receipts_add_up
    assert stream.statistics.closed is not None
    assert stream.statistics.closed.accepted == 300


async def test_slow_model_supersedes_frames_and_the_books_agree() -> None:
    engine = FakeEngine(respond=size_of, delay_s=0.02)
    async with running_gateway(engine) as gateway, connect(gateway.url) as client:
        streams = [stream_of(client, 100, "latest", fps=200.0) for _ in range(3)]
        seqs = await asyncio.gather(*(read(stream) for stream in streams))
    for stream, answered in zip(streams, seqs, strict=True):
        assert answered == sorted(set(answered))
        assert stream.statistics.dropped.get("superseded", 0) > 0
        assert stream.statistics.receipts_add_up


async def test_large_frames_travel_in_pieces() -> None:
    async with running_gateway() as gateway, connect(gateway.url) as client:
        stream = stream_of(client, 20, "lossless", size_bytes=700_000)
        sizes = [result.data["bytes"] async for result in stream]
    assert sizes == [len(picture()) + 700_000] * 20
    assert stream.statistics.receipts_add_up


async def test_refused_and_failed_frames_are_told_apart() -> None:
    failing = InvalidInput("broken scan")

    def respond(item: Item) -> bytes | InvalidInput:
        return failing if len(item.payload) % 2 else b"{}"

    async with (
        running_gateway(FakeEngine(respond=respond), limits={"max_width": 64}) as gateway,
        connect(gateway.url) as client,
    ):
        good, bad = picture(), picture() + bytes(1)
        if len(good) % 2:
            good, bad = bad, good
        source = frames_from_bytes([good, picture(width=65), bad, good])
        stream = client.stream_frames(source, model="fake", policy="lossless")
        assert await read(stream) == [0, 3]
    statistics = stream.statistics
    assert (statistics.results, statistics.refused, statistics.errors) == (2, 1, 1)
    assert statistics.receipts_add_up


async def test_leaving_early_cancels_what_is_in_flight() -> None:
    engine = FakeEngine(respond=size_of, delay_s=0.01)
    async with running_gateway(engine) as gateway, connect(gateway.url) as client:
        stream = stream_of(client, 1000, "lossless")
        async for _ in stream:
            break
        await stream.aclose()
        assert stream.statistics.cancelled > 0
        assert stream.statistics.receipts_add_up
        assert stream.statistics.closed is not None
        assert await read(stream_of(client, 5, "lossless")) == list(range(5))


async def test_unknown_model_and_wrong_key_are_said_in_words() -> None:
    async with running_gateway(server={"api_keys": ["right"]}) as gateway:
        with pytest.raises(AuthError):
            await connect(gateway.url, api_key="wrong").__aenter__()
        async with connect(gateway.url, api_key="right") as client:
            assert client.models == ["fake"]
            source = frames_from_bytes([picture()])
            with pytest.raises(StreamError, match="nobody"):
                await read(client.stream_frames(source, model="nobody"))


async def test_clock_is_measured() -> None:
    async with running_gateway() as gateway, connect(gateway.url) as client:
        estimate = await client.ping()
        assert 0 < estimate.rtt_s < 1.0
