"""The engine contract on the fake that generates text, in virtual time."""

from __future__ import annotations

import asyncio

import pytest
from msgspec.structs import replace

from engine.types import Item
from tests.contract.engine_suite import Built, EngineContract
from tests.fakes.text_engine import WORDS, TextEngine, finished

pytestmark = pytest.mark.contract


def make_faulty(item: Item) -> Item:
    return replace(item, payload=b"no prompt")


class TestTextEngine(EngineContract):
    def build(self) -> Built:
        engine = TextEngine(["echo"], gap_s=0.001)

        def occupy(seconds: float) -> None:
            engine.block()
            asyncio.get_running_loop().call_later(seconds, engine.unblock)

        return Built(
            engine=engine,
            model="echo",
            expected=lambda _: finished(completion_tokens=len(WORDS)).data,
            occupy=occupy,
            faulty=make_faulty,
            payload=lambda number: b'{"prompt":"%d"}' % number,
        )
