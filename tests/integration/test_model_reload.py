"""Versions of a real model folder, in real worker processes, behind a real gateway."""

from __future__ import annotations

import asyncio
import json
import re
import shutil
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import aiohttp
import pytest
from typer.testing import CliRunner

from engine.config import ModelConfig
from engine.errors import Overloaded
from engine.manifest import Manifest
from engine.models.store import ModelStore
from engine.types import Dropped, Item, LaneSpec, Outcome, Policy, Progress, Result
from engine.vision import VisionEngine
from gateway.cli import app
from tests.fakes.gateway import running_gateway, wait_until
from tests.fakes.model_folder import add_version
from tests.fakes.picture_headers import jpeg_header
from tests.fakes.pools import nothing_left

pytestmark = pytest.mark.integration


@asynccontextmanager
async def running_engine(folder: Path, **config: Any) -> AsyncIterator[VisionEngine]:
    with nothing_left():
        engine = make_engine(folder, **config)
        await engine.start()
        try:
            yield engine
            engine.check_integrity()
        finally:
            await engine.aclose(asyncio.get_running_loop().time() + 2.0)


def make_engine(folder: Path, **settings: Any) -> VisionEngine:
    config = ModelConfig(
        **{"slab_bytes": 1 << 20, "max_item_bytes": 1 << 18, "max_batch_size": 2, **settings}
    )
    repository = ModelStore(home=folder).repository("m", f"{folder}/", policy=config.versions)
    manifest: Manifest = repository.read()[-1][0]
    return VisionEngine({"m": (manifest, config)}, repositories={"m": repository})


class Stream:
    """Offers an item every ``period_s`` until told to stop, and keeps the outcomes."""

    def __init__(self, engine: VisionEngine, period_s: float = 0.01) -> None:
        self.told: dict[int, Outcome] = {}
        self.num_offered = 0
        self._period_s = period_s
        spec = LaneSpec(model="m", policy=Policy.FIFO, capacity=64)
        self._lane = engine.open_lane(spec, self._tell)

    async def run(self) -> None:
        while True:
            self.num_offered += 1
            try:
                self._lane.offer(Item(id=self.num_offered, payload=b"x" * 100))
            except Overloaded:
                self.num_offered -= 1  # a slow version: the lane is full for a while
            await asyncio.sleep(self._period_s)

    def versions(self) -> list[str]:
        results = [self.told[key] for key in sorted(self.told)]
        return [each.version for each in results if isinstance(each, Result)]

    def _tell(self, item_id: int, outcome: Progress | Outcome) -> None:
        assert item_id not in self.told
        assert not isinstance(outcome, Progress)
        self.told[item_id] = outcome


async def test_reloads_under_load_lose_nothing_and_leave_nothing(tmp_path: Path) -> None:
    add_version(tmp_path, 1, run_s=0.002)
    async with running_engine(tmp_path, trial_s=0.0) as engine:
        streams = [Stream(engine) for _ in range(3)]
        running = [asyncio.create_task(stream.run()) for stream in streams]
        for version in (2, 3):
            add_version(tmp_path, version, run_s=0.002)
            await asyncio.sleep(0.1)
            assert await engine.reload("m") == str(version)
        await asyncio.sleep(0.1)
        for task in running:
            task.cancel()
        for stream in streams:
            await wait_until(lambda stream=stream: len(stream.told) == stream.num_offered)  # type: ignore[misc]
            assert len(stream.versions()) == stream.num_offered
            assert set(stream.versions()) == {"1", "2", "3"}
        (model,) = engine.statistics().models
        assert model.accepted == model.results == sum(stream.num_offered for stream in streams)
        await wait_until(lambda: len(engine.statistics().models[0].versions) == 1)


async def test_a_corrupt_and_a_slow_version_roll_back_by_themselves(tmp_path: Path) -> None:
    add_version(tmp_path, 1, run_s=0.002)
    async with running_engine(tmp_path, trial_s=20.0, watch_s=0.1) as engine:

        def model() -> Any:
            return engine.statistics().models[0]

        stream = Stream(engine)
        running = asyncio.create_task(stream.run())
        await asyncio.sleep(0.5)
        add_version(tmp_path, 2, start="startup_error")
        await wait_until(lambda: model().reloads == {"failed": 1})
        assert "install frobnicator" in model().last_reload
        add_version(tmp_path, 3, run_s=0.05)
        await wait_until(lambda: model().reloads.get("rolled_back") == 1)
        assert "rolled back from version 3 to 1: a batch of " in model().last_reload
        count = len(stream.told)
        await wait_until(lambda: len(stream.told) > count + 50)
        running.cancel()
        assert stream.versions()[-1] == "1"
        assert not any(isinstance(outcome, Dropped) for outcome in stream.told.values())
        reasons = {each.version: each.reason for each in model().versions if each.reason}
        assert sorted(reasons) == ["2", "3"]
    await a_restart_passes_over_what_was_slow(tmp_path, reasons["3"])


async def a_restart_passes_over_what_was_slow(folder: Path, reason: str) -> None:
    shutil.rmtree(folder / "2")
    async with running_engine(folder, trial_s=0.0) as engine:
        (model,) = engine.statistics().models
        assert [(each.version, each.state) for each in model.versions] == [
            *(("1", "active"), ("3", "rejected"))
        ]
        assert model.versions[-1].reason == reason
        assert await engine.reload("m") == "1"
        assert await engine.reload("m", "3") == "3"
        assert await engine.reload("m") == "3"


async def ask(url: str, path: str, body: Any = None) -> tuple[int, Any]:
    async with (
        aiohttp.ClientSession() as client,
        client.post(f"{url.rstrip('/')}{path}", json=body or {}) as answer,
    ):
        return answer.status, await answer.json(content_type=None)


async def test_operators_load_unload_and_look_over_http_and_from_the_shell(tmp_path: Path) -> None:
    add_version(tmp_path, 1)
    add_version(tmp_path, 2)
    with nothing_left():
        async with running_gateway(make_engine(tmp_path, trial_s=0.0)) as gateway:
            url, one = gateway.url, "/v2/repository/models/m"
            assert await ask(url, f"{one}/load", {"parameters": {"version": "1"}}) == (
                200,
                {"name": "m", "version": "1"},
            )
            status, problem = await ask(url, f"{one}/load", {"parameters": {"version": "7"}})
            assert (status, problem["detail"]) == (
                404,
                "model 'm' has no version '7'; it has 1, 2",
            )
            assert (await ask(url, f"{one}/load", {"what": 1}))[0] == 400
            assert (await ask(url, f"{one}/load", {"parameters": "x" * 5000}))[0] == 413
            assert (await ask(url, "/v2/repository/models/other/load"))[0] == 404
            engine = gateway.engine
            await wait_until(lambda: len(engine.statistics().models[0].versions) == 1)
            status, entries = await ask(url, "/v2/repository/index")
            assert [(each["version"], each["state"]) for each in entries] == [("1", "READY")]

            shown = await shell("models", "reload", "m", "--url", url)
            assert shown == "m: version 2 serves\n"
            table = await shell("models", "versions", "m", "--url", url)
            assert ["2", "active", "ready"] in [line.split() for line in table.splitlines()]
            assert "no model 'x'" in await shell("models", "versions", "x", "--url", url)

            assert (await ask(url, f"{one}/unload"))[0] == 200
            assert gateway.engine.statistics().ready  # it was asked for
            assert gateway.health.reasons() == []
            (model,) = gateway.engine.statistics().models
            assert (model.ready, model.reason, model.workers_alive) == (False, "unloaded", 0)
            assert (await ask(url, f"{one}/load"))[0] == 200
            assert gateway.engine.statistics().models[0].ready


async def test_http_requests_pin_a_version_that_is_served(tmp_path: Path) -> None:
    for version in (1, 2):
        add_version(tmp_path, version)
    with nothing_left():
        async with running_gateway(make_engine(tmp_path, versions=("all",))) as gateway:
            for path, expected in (("m/versions/1", "1"), ("m/versions/2", "2"), ("m", "2")):
                status, answer = await infer(gateway.url, path)
                assert (status, answer["version"]) == (200, expected)
            status, problem = await infer(gateway.url, "m/versions/3")
            assert (status, problem["detail"]) == (404, "model 'm' has version '1', '2', not '3'")
            assert gateway.engine.statistics().models[0].lanes == 0
            assert await runs_by_version(gateway.url) == {"1": 1, "2": 2}


async def runs_by_version(url: str) -> dict[str, int]:
    """How many results the metrics have, by version."""
    async with aiohttp.ClientSession() as client, client.get(f"{url}metrics") as answer:
        text = await answer.text()
    labels = r'clawstream_hop_seconds_count{hop="run",model="m",version="(\w+)"} (\d+)'
    return {version: int(count) for version, count in re.findall(labels, text)}


async def infer(url: str, path: str) -> tuple[int, Any]:
    async with (
        aiohttp.ClientSession() as client,
        client.post(f"{url}v1/infer/{path}", data=jpeg_header(64, 64)) as answer,
    ):
        return answer.status, await answer.json(content_type=None)


async def shell(*arguments: str) -> str:
    environment = {"COLUMNS": "120", "NO_COLOR": "1"}
    result = await asyncio.to_thread(CliRunner().invoke, app, arguments, env=environment)
    return result.output


async def test_an_engine_of_another_kind_says_that_it_cannot_be_reloaded() -> None:
    async with running_gateway() as gateway:
        status, problem = await ask(gateway.url, "/v2/repository/models/fake/load")
        assert (status, problem["detail"]) == (503, "model 'fake' cannot be reloaded")
        status, entries = await ask(gateway.url, "/v2/repository/index")
        assert json.dumps(entries[0]).startswith('{"name": "fake", "version": "1"')


def test_info_shows_the_newest_version_of_a_folder_and_which_others_are_there(
    tmp_path: Path,
) -> None:
    for version in (2, 10):
        add_version(tmp_path / "helmets", version)
    result = CliRunner().invoke(app, ["models", "info", str(tmp_path / "helmets")])
    assert result.exit_code == 0, result.output
    assert "name: helmets version 10" in result.output
    assert "versions here: 2, 10" in result.output
