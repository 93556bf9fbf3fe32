"""The engine contract on an upstream server, over real sockets, in real time."""

from __future__ import annotations

import asyncio

import pytest
import uvloop
from msgspec.structs import replace

from engine.config import UpstreamConfig
from engine.llm.upstream.engine import UpstreamEngine
from tests.contract.engine_suite import Built, EngineContract, Fact
from tests.fakes.echo_llm import last_words, prompt
from tests.fakes.openai_server import FakeOpenAiServer

pytestmark = pytest.mark.integration

FAULTY = b'{"messages": 3}'


class TestUpstreamEngine(EngineContract):
    loop_factory: type[asyncio.AbstractEventLoop] = uvloop.Loop  # as in the gateway
    late_s = 2.0
    early_s = 0.001

    async def play(self, test: Fact) -> None:
        async with FakeOpenAiServer() as self.server:
            await super().play(test)

    def build(self) -> Built:
        def occupy(seconds: float) -> None:
            self.server.block()
            asyncio.get_running_loop().call_later(seconds, self.server.unblock)

        config = UpstreamConfig(url=self.server.url, model="upstream-echo", dialect="vllm")
        return Built(
            engine=UpstreamEngine({"echo": config}),
            model="echo",
            expected=last_words,
            occupy=occupy,
            faulty=lambda item: replace(item, payload=FAULTY),
            payload=lambda number: prompt(f"tell me {number}"),
        )
