"""Token events tell where their time went to those who ask, and cost nobody else a byte."""

from __future__ import annotations

from itertools import pairwise

import pytest
from msgspec import UNSET
from websockets.asyncio.client import connect as connect_websocket
from websockets.typing import Subprotocol

from gateway.app import Gateway
from gateway.wire.codec import decode_server, encode
from gateway.wire.messages import (
    SUBPROTOCOL,
    EndOutput,
    Hello,
    Open,
    Prompt,
    StreamKind,
    StreamOptions,
    Token,
    TokenTiming,
    Welcome,
)
from tests.fakes.gateway import running_gateway
from tests.fakes.text_engine import TextEngine
from tests.fakes.uvloop_runner import on_uvloop

pytestmark = pytest.mark.integration

WORDS = tuple(f"{index} " for index in range(12))
TICK_US = 1001  # uvloop counts in whole milliseconds


async def tokens_of(gateway: Gateway, options: StreamOptions) -> tuple[int, list[Token]]:
    """One answer, and the server's clock before it."""
    tokens, now_us = [], 0
    address = f"{gateway.url.replace('http', 'ws', 1)}v1/stream"
    async with connect_websocket(address, subprotocols=[Subprotocol(SUBPROTOCOL)]) as socket:
        for message in (
            Hello(),
            Open(stream=1, model="fake", kind=StreamKind.TOKENS, options=options),
            Prompt(stream=1, id="p", prompt="x"),
        ):
            await socket.send(encode(message).decode())
        async for data in socket:
            told = decode_server(data.encode() if isinstance(data, str) else data)
            if isinstance(told, Welcome):
                now_us = told.now_us
            elif isinstance(told, Token):
                tokens.append(told)
            elif isinstance(told, EndOutput):
                break
    return now_us, tokens


@on_uvloop
async def test_timing_tells_the_engines_time_what_is_held_and_the_reserve() -> None:
    async with running_gateway(TextEngine(words=WORDS)) as gateway:
        now_us, tokens = await tokens_of(gateway, StreamOptions(timing=True))
    timings = [token.timing for token in tokens if isinstance(token.timing, TokenTiming)]
    assert len(timings) == len(WORDS)
    # All came at once, the first left at once, and the last was held while the others left.
    assert now_us <= timings[0].engine_us
    assert timings[0].held_us <= TICK_US
    assert all(sooner.engine_us <= later.engine_us for sooner, later in pairwise(timings))
    assert timings[-1].held_us > 8 * 20_000
    assert timings[-1].reserve == 0
    assert max(timing.reserve for timing in timings) >= len(WORDS) - 2


@on_uvloop
async def test_nobody_else_is_told_any_timing() -> None:
    async with running_gateway(TextEngine(words=WORDS)) as gateway:
        _, tokens = await tokens_of(gateway, StreamOptions(pace="off"))
    assert tokens
    assert all(token.timing is UNSET for token in tokens)
