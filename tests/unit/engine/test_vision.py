"""What the engine adds to its batchers: several models, starting, closing. The boundary's
contract itself is in ``tests/contract``."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

import pytest

from engine import vision
from engine.batching.executor import ExecutorEvents
from engine.config import ModelConfig
from engine.errors import StartupError, Unavailable
from engine.manifest import Manifest
from engine.types import Item, LaneSpec, Outcome, Progress, Result
from engine.vision import VisionEngine
from tests.fakes.executor import FakeExecutor
from tests.fakes.virtual_time import settle, virtual_time

pytestmark = pytest.mark.unit


class Bench:
    """An engine whose pools are fakes; ``pools`` and ``threads`` by model name."""

    def __init__(self, **workers: int) -> None:
        self.pools: dict[str, FakeExecutor] = {}
        self.threads: dict[str, int] = {}
        self.prepare: Callable[[str, FakeExecutor], None] = lambda name, pool: None
        models = {
            name: (Manifest(name=name, version="3"), ModelConfig(workers=count))
            for name, count in workers.items()
        }
        self.engine = VisionEngine(models, self._build_pool)

    def fail(self, model: str, error: BaseException) -> None:
        def prepare(name: str, pool: FakeExecutor) -> None:
            if name == model:
                pool.start_error = error

        self.prepare = prepare

    def _build_pool(
        self, manifest: Manifest, config: ModelConfig, threads: int, events: ExecutorEvents
    ) -> FakeExecutor:
        pool = FakeExecutor(events, workers=config.workers, run_s=0.01)
        self.pools[manifest.name] = pool
        self.threads[manifest.name] = threads
        self.prepare(manifest.name, pool)
        return pool


def ignore(item_id: int, outcome: Progress | Outcome) -> None:
    """A stream that does not care."""


@virtual_time
async def test_each_model_has_its_own_workers_and_books() -> None:
    bench = Bench(faces=1, labels=2)
    await bench.engine.start()
    told: list[Progress | Outcome] = []
    lane = bench.engine.open_lane(LaneSpec(model="labels"), lambda _, outcome: told.append(outcome))
    lane.offer(Item(id=1, payload=b"x"))
    await bench.engine.aclose(1.0)
    assert isinstance(told[0], Result)
    assert bench.pools["faces"].batches == []
    faces, labels = bench.engine.statistics().models
    assert (faces.model, faces.version, faces.accepted) == ("faces", "3", 0)
    assert (labels.model, labels.accepted, labels.results, labels.batches) == ("labels", 1, 1, 1)


@virtual_time
async def test_the_cores_are_divided_between_all_workers(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(vision, "available_cores", lambda: 6.0)
    bench = Bench(faces=1, labels=2)
    await bench.engine.start()
    assert bench.threads == {"faces": 2, "labels": 2}
    await bench.engine.aclose(1.0)


@virtual_time
async def test_before_the_start_nothing_is_served_and_the_reason_is_told() -> None:
    bench = Bench(faces=1)
    lane = bench.engine.open_lane(LaneSpec(model="faces"), ignore)
    with pytest.raises(Unavailable, match="starting"):
        lane.offer(Item(id=1, payload=b""))
    (model,) = bench.engine.statistics().models
    assert (model.ready, model.reason, model.workers_wanted) == (False, "not started", 1)
    await bench.engine.aclose(1.0)


@virtual_time
async def test_a_model_that_cannot_start_stops_the_others_too() -> None:
    bench = Bench(faces=1, labels=1)
    bench.fail("labels", StartupError("model labels: no such file"))
    with pytest.raises(StartupError, match="model labels: no such file"):
        await bench.engine.start()
    assert not bench.pools["faces"].is_started
    with pytest.raises(Unavailable):
        bench.engine.open_lane(LaneSpec(model="faces"), ignore)


@virtual_time
async def test_a_cancelled_start_leaves_nothing_running() -> None:
    bench = Bench(faces=1, labels=1)

    def hang(name: str, pool: FakeExecutor) -> None:
        if name == "labels":
            pool.start_gate = asyncio.Event()

    bench.prepare = hang
    starting = asyncio.create_task(bench.engine.start())
    await settle()
    assert bench.pools["faces"].is_started
    starting.cancel()
    with pytest.raises(asyncio.CancelledError):
        await starting
    assert not bench.pools["faces"].is_started


@virtual_time
async def test_a_cancelled_close_still_stops_the_workers() -> None:
    bench = Bench(faces=1)
    await bench.engine.start()
    bench.pools["faces"].block()
    bench.engine.open_lane(LaneSpec(model="faces"), ignore).offer(Item(id=1, payload=b""))
    closing = asyncio.create_task(bench.engine.aclose(100.0))
    await settle()
    closing.cancel()
    with pytest.raises(asyncio.CancelledError):
        await closing
    assert not bench.pools["faces"].is_started
    assert bench.engine.statistics().models[0].dropped == {"shutdown": 1}


@virtual_time
async def test_a_broken_model_makes_the_engine_unready_and_says_why() -> None:
    bench = Bench(faces=1, labels=1)
    await bench.engine.start()
    bench.pools["faces"].break_down("circuit open: out of memory")
    statistics = bench.engine.statistics()
    assert not statistics.ready
    assert [model.ready for model in statistics.models] == [False, True]
    await bench.engine.aclose(1.0)
