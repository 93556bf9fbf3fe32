"""The engine contract on engines without processes, in virtual time."""

from __future__ import annotations

import asyncio

import pytest
from msgspec.structs import replace

from engine.batching.executor import ExecutorEvents, Work
from engine.config import ModelConfig
from engine.errors import EngineError, InvalidInput
from engine.manifest import Manifest
from engine.types import Item
from engine.vision import VisionEngine
from tests.contract.engine_suite import Built, EngineContract
from tests.fakes.engine import FakeEngine
from tests.fakes.executor import FakeExecutor

pytestmark = pytest.mark.contract

FAULTY = b"faulty"


def respond(item: Item | Work) -> bytes | EngineError:
    """The payload backwards; an error for an item that says so."""
    return InvalidInput("it says so") if item.options == FAULTY else bytes(item.payload)[::-1]


def make_faulty(item: Item) -> Item:
    return replace(item, options=FAULTY)


class TestFakeEngine(EngineContract):
    def build(self) -> Built:
        engine = FakeEngine(["echo"], delay_s=0.001, respond=respond)

        def occupy(seconds: float) -> None:
            engine.block()
            asyncio.get_running_loop().call_later(seconds, engine.unblock)

        return Built(
            engine=engine,
            model="echo",
            expected=lambda payload: payload[::-1],
            occupy=occupy,
            faulty=make_faulty,
        )


class TestVisionEngine(EngineContract):
    def build(self) -> Built:
        pools: list[FakeExecutor] = []

        def build_pool(
            manifest: Manifest, config: ModelConfig, threads: int, events: ExecutorEvents
        ) -> FakeExecutor:
            pools.append(
                FakeExecutor(events, prefetch=1, run_s=0.001, respond=respond, model=manifest.name)
            )
            return pools[-1]

        def occupy(seconds: float) -> None:
            pools[0].block()
            asyncio.get_running_loop().call_later(seconds, pools[0].unblock)

        manifest = Manifest(name="echo", version="1")
        return Built(
            engine=VisionEngine({"echo": (manifest, ModelConfig(max_batch_size=4))}, build_pool),
            model="echo",
            expected=lambda payload: payload[::-1],
            occupy=occupy,
            faulty=make_faulty,
        )
