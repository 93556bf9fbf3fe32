"""The pressure ladder and a language model with cheaper weights, in its real worker."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path

import msgspec
import pytest

from engine.llm.client import LlmEngine
from engine.llm.linear import is_int8_supported
from engine.llm.request import PromptPayload, Sampling
from engine.models.store import ModelStore
from engine.types import Result
from gateway.config import parse_config
from gateway.serving import build_serving
from gateway.session.pressure import Pressure, Readings
from gateway.stream.service_level import Level
from tests.fakes.llm_engines import LlmStreams
from tests.fakes.pools import nothing_left
from tests.fakes.tiny_llm import write_tiny_llm

pytestmark = pytest.mark.integration

CHEAPER = "int8" if is_int8_supported() else "bf16"
TEXT = "a question that is longer than two blocks of the cache"


class Ladder:
    """The gateway's own, in a time that passes at once."""

    def __init__(self) -> None:
        self.pressure = Pressure()
        self._now = itertools.count()

    def climb_to(self, level: Level) -> None:
        load = 2.0 if level > self.pressure.level else 0.0
        while self.pressure.level is not level:
            readings = Readings(models=(), outbox_share=load, loop_lag_s=0.0)
            self.pressure.update(readings, next(self._now))


@asynccontextmanager
async def running(home: Path, service_level: Callable[[], int]) -> AsyncIterator[LlmStreams]:
    inference = {
        "weights": "fp32",
        "cheaper_weights": CHEAPER,
        "threads": 1,
        "max_seq_length": 2048,
        "kv_cache_bytes": 1 << 21,
        "speculative_tokens": 0,  # the long answer shall take its time
    }
    models = {"tiny": {"path": str(write_tiny_llm(home / "tiny"))}}
    config = parse_config({"models": models, "inference": inference})
    with nothing_left():
        engine = build_serving(config, ModelStore(home), service_level).engine
        assert isinstance(engine, LlmEngine)
        await engine.start()
        try:
            yield LlmStreams(engine)
            engine.check_integrity()
        finally:
            await engine.aclose(asyncio.get_running_loop().time() + 5.0)


def ask(streams: LlmStreams, max_tokens: int = 24) -> int:
    sampling = Sampling(temperature=0.0, max_tokens=max_tokens, ignore_eos=True)
    payload = PromptPayload(prompt=TEXT, sampling=sampling)
    return streams.ask(streams.lane(), msgspec.json.encode(payload))


async def answer(streams: LlmStreams, item: int) -> tuple[str, str]:
    """The text, and the version that the result names."""
    result = await streams.outcome(item)
    assert isinstance(result, Result)
    return streams.texts[item], result.version


def weights(streams: LlmStreams) -> str:
    llm = streams.statistics.llm
    assert llm is not None
    return llm.weights


async def test_under_pressure_steps_run_with_the_cheaper_weights_and_back(tmp_path: Path) -> None:
    ladder = Ladder()
    async with running(tmp_path, ladder.pressure.service_level) as streams:
        usual, version = await answer(streams, ask(streams))
        assert (weights(streams), version) == ("fp32", "1")
        long = ask(streams, max_tokens=1200)
        await streams.wait(lambda: long in streams.texts)

        ladder.climb_to(Level.CHEAPER_MODEL)
        await streams.wait(lambda: weights(streams) == CHEAPER)
        cheap, version = await answer(streams, ask(streams))
        assert version == f"1+{CHEAPER}"
        assert await answer(streams, ask(streams)) == (cheap, version)
        assert (await answer(streams, long))[1] == version

        ladder.climb_to(Level.NORMAL)
        await streams.wait(lambda: weights(streams) == "fp32")
        assert await answer(streams, ask(streams)) == (usual, "1")
