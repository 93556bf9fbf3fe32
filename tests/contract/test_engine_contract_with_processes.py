"""The engine contract on the vision engine with a real worker process, in real time."""

from __future__ import annotations

import asyncio
import json

import pytest
import uvloop
from msgspec.structs import replace

from engine.config import ModelConfig
from engine.manifest import Manifest
from engine.types import Item, LaneSpec
from engine.vision import VisionEngine
from tests.contract.engine_suite import Built, EngineContract

pytestmark = pytest.mark.integration


def answer(payload: bytes) -> bytes:
    """What ``tests.fakes.quiet_pipeline`` says of a payload."""
    return json.dumps({"bytes": len(payload), "sum": sum(payload)}).encode()


class TestVisionEngineWithProcesses(EngineContract):
    loop_factory: type[asyncio.AbstractEventLoop] = uvloop.Loop  # as in the gateway
    late_s = 2.0
    early_s = 0.001

    def build(self) -> Built:
        manifest = Manifest(name="echo", version="1", pipeline="tests.fakes.quiet_pipeline:build")
        config = ModelConfig(max_batch_size=4, threads=1, start_timeout_s=30.0)
        engine = VisionEngine({"echo": (manifest, config)})

        def occupy(seconds: float) -> None:
            lane = engine.open_lane(LaneSpec(model="echo"), lambda *_: lane.close())
            options = json.dumps({"sleep_s": seconds}).encode()
            lane.offer(Item(id=0, payload=b"", options=options))

        return Built(
            engine=engine,
            model="echo",
            expected=answer,
            occupy=occupy,
            faulty=lambda item: replace(item, options=b'{"act": "invalid", "stage": "prepare"}'),
        )
