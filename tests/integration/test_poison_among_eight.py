"""One bad item in a batch of eight, in real workers: seven results, one error, whatever it does."""

from __future__ import annotations

import asyncio
import json

import pytest

from engine.config import ModelConfig
from engine.errors import EngineError, InternalError, InvalidInput, Quarantined
from engine.manifest import Manifest
from engine.types import Failed, Item, LaneSpec, Outcome, Policy, Progress, Result
from engine.vision import VisionEngine
from tests.fakes.gateway import wait_until
from tests.fakes.pools import nothing_left

pytestmark = pytest.mark.integration


@pytest.mark.parametrize(
    ("act", "stage", "error"),
    [
        ("invalid", "prepare", InvalidInput),
        ("raise", "run", InternalError),
        ("raise", "interpret", InternalError),
        ("abort", "run", Quarantined),
        ("exit", "prepare", Quarantined),
        ("hang", "run", Quarantined),
    ],
)
async def test_seven_results_and_one_error(act: str, stage: str, error: type[EngineError]) -> None:
    manifest = Manifest(
        name="m", pipeline="tests.fakes.pipelines:build_scripted", options={"run_s": 0.01}
    )
    # Eight items are offered in one turn of the loop, while the worker has room for one batch.
    config = ModelConfig(
        max_batch_size=8, slab_bytes=1 << 20, max_item_bytes=1 << 18, stall_timeout_s=1.0
    )
    told: dict[int, Outcome] = {}

    def tell(item_id: int, outcome: Progress | Outcome) -> None:
        assert item_id not in told
        assert not isinstance(outcome, Progress)
        told[item_id] = outcome

    with nothing_left():
        engine = VisionEngine({"m": (manifest, config)})
        await engine.start()
        lane = engine.open_lane(LaneSpec(model="m", policy=Policy.FIFO, capacity=16), tell)
        for number in range(8):
            script = {"act": act, "stage": stage} if number == 3 else {}
            lane.offer(Item(id=number, payload=b"x", options=json.dumps(script).encode()))
        await wait_until(lambda: len(told) == 8)
        engine.check_integrity()
        (model,) = engine.statistics().models
        await engine.aclose(asyncio.get_running_loop().time() + 2.0)
    bad = told.pop(3)
    assert isinstance(bad, Failed)
    assert isinstance(bad.error, error), bad.error
    assert all(isinstance(outcome, Result) for outcome in told.values()), told
    assert model.accepted == model.results + model.failed == 8
