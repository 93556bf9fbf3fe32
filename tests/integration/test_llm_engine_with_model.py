"""The language-model engine with its real worker and a tiny model."""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import msgspec
import pytest

from engine.config import LlmConfig
from engine.errors import InvalidInput, StartupError, Unavailable
from engine.llm.client import LlmEngine
from engine.llm.request import ChatMessage, FinishedAnswer, PromptPayload, Sampling
from engine.manifest import Manifest
from engine.types import Cancelled, Failed, Result
from tests.fakes.llm_engines import LlmStreams
from tests.fakes.pools import child_pids, nothing_left
from tests.fakes.tiny_llm import write_tiny_llm

pytestmark = pytest.mark.integration


def chat(text: str, **sampling: Any) -> bytes:
    values = {"temperature": 0.0, "max_tokens": 24, "ignore_eos": True, **sampling}
    payload = PromptPayload(
        messages=(ChatMessage(role="user", content=text),), sampling=Sampling(**values)
    )
    return msgspec.json.encode(payload)


def make_engine(folder: Path) -> LlmEngine:
    manifest = Manifest(name="tiny", files={"model": str(folder)})
    config = LlmConfig(weights="fp32", threads=1, max_seq_length=512, kv_cache_bytes=1 << 21)
    return LlmEngine({"tiny": (manifest, config)})


@asynccontextmanager
async def running_model(folder: Path) -> AsyncIterator[LlmStreams]:
    with nothing_left():
        engine = make_engine(write_tiny_llm(folder))
        await engine.start()
        try:
            yield LlmStreams(engine)
            engine.check_integrity()
        finally:
            await engine.aclose(asyncio.get_running_loop().time() + 5.0)


async def answer(streams: LlmStreams, payload: bytes) -> str:
    item = streams.ask(streams.lane(), payload)
    assert isinstance(await streams.outcome(item), Result)
    return streams.texts[item]


async def test_prompts_are_answered_the_same_alone_and_in_company(tmp_path: Path) -> None:
    async with running_model(tmp_path / "tiny") as streams:
        payloads = [chat(f"question {number} " * (1 + number)) for number in range(12)]
        alone = [await answer(streams, payload) for payload in payloads]
        together = await asyncio.gather(*(answer(streams, payload) for payload in payloads))
        assert list(together) == alone

        item = streams.ask(streams.lane(), payloads[0])
        result = await streams.outcome(item)
        assert isinstance(result, Result)
        finished = msgspec.json.decode(result.data, type=FinishedAnswer)
        assert (finished.finish_reason, finished.usage.completion_tokens) == ("length", 24)
        assert result.timing.prepare > 0

        # refused, and nobody else notices
        for faulty in (b"{}", chat("x" * 5000), b"\xff"):
            refused = await streams.outcome(streams.ask(streams.lane(), faulty))
            assert isinstance(refused, Failed)
            assert isinstance(refused.error, InvalidInput)

        # a withdrawn answer gives its blocks back
        lane = streams.lane()
        long = streams.ask(lane, chat("a long answer", max_tokens=400))
        await streams.wait(lambda: long in streams.texts)
        lane.close()
        assert streams.outcomes[long] == Cancelled()

        def is_idle() -> bool:
            llm = streams.statistics.llm
            assert llm is not None
            return llm.tokens > 0 and (llm.running, llm.kv_cache_utilization) == (0, 0.0)

        await streams.wait(is_idle)
        llm = streams.statistics.llm
        assert llm is not None
        assert (llm.device, llm.weights) == ("cpu", "fp32")
        assert llm.tokens_per_s > 0
        assert 0 < llm.step_p50_s <= llm.step_p99_s


async def test_a_killed_worker_is_replaced_and_answers_the_same(tmp_path: Path) -> None:
    async with running_model(tmp_path / "tiny") as streams:
        expected = await answer(streams, chat("question"))
        begun = streams.ask(streams.lane(), chat("question", max_tokens=400))
        await streams.wait(lambda: begun in streams.texts)
        (pid,) = child_pids()
        os.kill(pid, signal.SIGKILL)
        fresh = streams.ask(streams.lane(), chat("question"))
        failed = await streams.outcome(begun)
        assert isinstance(failed, Failed)
        assert isinstance(failed.error, Unavailable)
        assert isinstance(await streams.outcome(fresh), Result)
        assert streams.texts[fresh] == expected


async def test_a_model_that_is_not_there_is_named(tmp_path: Path) -> None:
    with nothing_left(), pytest.raises(StartupError, match="no-model-here"):
        await make_engine(tmp_path / "no-model-here").start()
