"""Text that comes at once leaves evenly, over real sockets and both doors."""

from __future__ import annotations

import statistics
import time
from itertools import pairwise

import aiohttp
import pytest
from websockets.asyncio.client import connect as connect_websocket

from gateway.app import Gateway
from gateway.wire.codec import decode_server, encode
from gateway.wire.messages import (
    SUBPROTOCOL,
    EndOutput,
    Hello,
    Open,
    Prompt,
    StreamKind,
    Token,
)
from tests.fakes.gateway import running_gateway
from tests.fakes.text_engine import TextEngine
from tests.fakes.uvloop_runner import on_uvloop

pytestmark = pytest.mark.integration

NUM_WORDS = 30
SLACK_S = 0.02  # of a busy machine, for the median gap


@on_uvloop
async def test_tokens_leave_on_the_pace_that_is_told_and_the_end_last() -> None:
    engine = TextEngine(words=[f"{index} " for index in range(NUM_WORDS)])
    async with (
        running_gateway(engine) as gateway,
        connect_websocket(
            f"{gateway.url.replace('http', 'ws', 1)}v1/stream", subprotocols=[SUBPROTOCOL]
        ) as socket,
    ):
        for message in (
            Hello(),
            Open(stream=1, model="fake", kind=StreamKind.TOKENS),
            Prompt(stream=1, id="p", prompt="x"),
        ):
            await socket.send(encode(message).decode())
        tokens: list[tuple[float, Token]] = []
        while True:
            data = await socket.recv()
            message = decode_server(data.encode() if isinstance(data, str) else data)
            if isinstance(message, Token):
                tokens.append((time.monotonic(), message))
            elif isinstance(message, EndOutput):
                break
        delivery = gateway.sessions.text_of("fake").delivery
    assert "".join(token.text for _, token in tokens) == "".join(engine.words)
    errors = []
    for (sooner, token), (later, _) in pairwise(tokens):
        assert isinstance(token.pace, float)
        assert 15.0 < token.pace < 60.0
        errors.append(abs(later - sooner - token.pace / 1e3))
    assert statistics.median(errors) < SLACK_S
    assert tokens[-1][0] - tokens[0][0] > 15 * 0.02
    assert (delivery.num_paced, delivery.num_held) == (NUM_WORDS - 1, 0)


@on_uvloop
async def test_an_event_stream_is_paced_when_it_is_asked_for() -> None:
    engine = TextEngine()
    async with running_gateway(engine) as gateway, aiohttp.ClientSession() as client:
        took_s = {}
        for pace in ("off", "steady"):
            body = {"model": "fake", "prompt": "x", "stream": True, "pace": pace}
            started_at = time.monotonic()
            async with client.post(f"{gateway.url}v1/completions", json=body) as response:
                text = (await response.read()).decode()
            took_s[pace] = time.monotonic() - started_at
            assert text.count("data: ") == len(engine.words) + 1
    # Nine gaps of at least 20 ms.
    assert took_s["steady"] > 0.18
    assert took_s["off"] < took_s["steady"]


@on_uvloop
async def test_the_network_of_event_streams_is_looked_at_again_and_again() -> None:
    engine = TextEngine(words=["x "] * 400, gap_s=0.005)
    body = {"model": "fake", "prompt": "x", "stream": True, "pace": "steady"}
    async with running_gateway(engine) as gateway, aiohttp.ClientSession() as client:
        async with client.post(f"{gateway.url}v1/completions", json=body) as response:
            await response.content.readany()
            assert await sample(gateway, client, "event_streams") == 1.0
            assert await sample(gateway, client, 'network_rtt_seconds{statistic="max"}') > 0.0
            while (num_segments := await sample(gateway, client, "tcp_segments_total")) < 10.0:
                await response.content.readany()
        while await sample(gateway, client, "event_streams"):
            pass  # its handler is about to end
        assert await sample(gateway, client, "tcp_segments_total") >= num_segments


async def sample(gateway: Gateway, client: aiohttp.ClientSession, name: str) -> float:
    async with client.get(f"{gateway.url}metrics") as response:
        lines = (await response.text()).splitlines()
    (value,) = (line.rpartition(" ")[2] for line in lines if line.startswith(f"clawstream_{name} "))
    return float(value)
