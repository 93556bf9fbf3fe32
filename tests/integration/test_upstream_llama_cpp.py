"""The upstream engine against a real server, llama.cpp's."""

from __future__ import annotations

import asyncio
import importlib.util
import json
import urllib.request
from collections.abc import AsyncIterator, Iterator
from typing import Any

import msgspec
import pytest

from engine.config import UpstreamConfig
from engine.errors import InvalidInput
from engine.llm.request import ChatMessage, FinishedAnswer, PromptPayload, Sampling
from engine.llm.upstream.engine import UpstreamEngine
from engine.types import Cancelled, Failed, Item, LaneSpec, Outcome, Policy, Progress, Result
from loadtest.peers.gguf import smollm2_gguf
from tests.fakes.llama_server import llama_server

pytestmark = pytest.mark.slow

if importlib.util.find_spec("xllamacpp") is None:
    pytest.skip("xllamacpp is not installed (extra `loadtest`)", allow_module_level=True)

WAIT_S = 60.0
QUESTION = (ChatMessage(role="user", content="Count from one to ten in words."),)


@pytest.fixture(scope="module")
def url(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    with llama_server(smollm2_gguf(tmp_path_factory.mktemp("download"))) as url:
        yield url


@pytest.fixture
async def engine(url: str) -> AsyncIterator[UpstreamEngine]:
    config = UpstreamConfig(url=url, model="smollm2", dialect="llamacpp")
    engine = UpstreamEngine({"smollm2": config})
    await engine.start()
    try:
        yield engine
    finally:
        await engine.aclose(asyncio.get_running_loop().time() + 1.0)
        engine.check_integrity()


class Asker:
    """Asks one prompt; ``pieces`` is the text so far."""

    def __init__(self, engine: UpstreamEngine, **payload: Any) -> None:
        self.pieces: list[str] = []
        self.outcome: asyncio.Future[Outcome] = asyncio.get_running_loop().create_future()
        self.began = asyncio.Event()
        spec = LaneSpec(model="smollm2", policy=Policy.FIFO)
        self.lane = engine.open_lane(spec, self._emit)
        self.lane.offer(Item(id=0, payload=msgspec.json.encode(PromptPayload(**payload))))

    async def answer(self) -> tuple[str, FinishedAnswer]:
        outcome = await self.wait()
        assert isinstance(outcome, Result), outcome
        return "".join(self.pieces), msgspec.json.decode(outcome.data, type=FinishedAnswer)

    async def wait(self) -> Outcome:
        return await asyncio.wait_for(self.outcome, WAIT_S)

    def _emit(self, _: int, news: Progress | Outcome) -> None:
        if isinstance(news, Progress):
            self.pieces.append(news.text)
            self.began.set()
        else:
            self.outcome.set_result(news)


def ask_at_once(url: str, body: dict[str, Any]) -> dict[str, Any]:
    """The same question without an engine and without a stream."""
    request = urllib.request.Request(
        f"{url}/chat/completions",
        data=json.dumps(body).encode(),
        headers={"Content-Type": "application/json"},
    )
    with urllib.request.urlopen(request, timeout=WAIT_S) as response:
        answer: dict[str, Any] = json.load(response)
    return answer


async def test_a_chat_is_what_the_server_answers_at_once(engine: UpstreamEngine, url: str) -> None:
    greedy = Sampling(temperature=0.0, max_tokens=32)
    text, answer = await Asker(engine, messages=QUESTION, sampling=greedy).answer()
    body = {
        "messages": [{"role": "user", "content": QUESTION[0].content}],
        "temperature": 0.0,
        "max_tokens": 32,
        # as the engine says it, or the server's own defaults would count
        "top_k": 0,
        "top_p": 1.0,
        "min_p": 0.0,
        "repeat_penalty": 1.0,
    }
    expected = await asyncio.to_thread(ask_at_once, url, body)
    assert text == expected["choices"][0]["message"]["content"]
    assert answer.usage.prompt_tokens == expected["usage"]["prompt_tokens"]
    assert answer.usage.completion_tokens == expected["usage"]["completion_tokens"]
    assert answer.finish_reason == expected["choices"][0]["finish_reason"]


async def test_a_completion_ends_at_its_length(engine: UpstreamEngine) -> None:
    sampling = Sampling(temperature=0.0, max_tokens=8, ignore_eos=True)
    asker = Asker(engine, prompt="Once upon a time", sampling=sampling)
    text, answer = await asker.answer()
    assert text
    assert len(asker.pieces) <= 8
    assert (answer.finish_reason, answer.usage.completion_tokens) == ("length", 8)


async def test_a_stop_string_ends_an_answer(engine: UpstreamEngine) -> None:
    sampling = Sampling(temperature=0.0, max_tokens=64, stop=(" ",), ignore_eos=True)
    text, answer = await Asker(engine, prompt="Once upon a", sampling=sampling).answer()
    assert " " not in text
    assert answer.finish_reason == "stop"


async def test_a_seed_makes_an_answer_reproducible(engine: UpstreamEngine) -> None:
    sampling = Sampling(temperature=1.5, seed=7, max_tokens=16, ignore_eos=True)
    askers = [Asker(engine, prompt="Once upon a time", sampling=sampling) for _ in range(2)]
    first, second = [await asker.answer() for asker in askers]
    assert first[0] == second[0]


async def test_a_prompt_longer_than_the_context_is_the_callers_fault(
    engine: UpstreamEngine,
) -> None:
    asker = Asker(engine, prompt="word " * 10_000, sampling=Sampling(max_tokens=1))
    outcome = await asker.wait()
    assert isinstance(outcome, Failed)
    assert isinstance(outcome.error, InvalidInput)
    assert "context" in outcome.error.detail


async def test_a_cancelled_answer_frees_its_slot(engine: UpstreamEngine) -> None:
    """Both slots are taken by answers of minutes: the next is served only if they end."""
    endless = Sampling(temperature=0.0, max_tokens=3000, ignore_eos=True)
    busy = [Asker(engine, prompt="Once upon a time", sampling=endless) for _ in range(2)]
    for asker in busy:
        await asyncio.wait_for(asker.began.wait(), WAIT_S)
        asker.lane.cancel(0)
        assert await asker.wait() == Cancelled()
    text, _ = await asyncio.wait_for(
        Asker(engine, messages=QUESTION, sampling=Sampling(max_tokens=4)).answer(), 10.0
    )
    assert text
