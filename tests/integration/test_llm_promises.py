"""The real language model behind ``clawstream serve``: OpenAI's unmodified client, and memory that
does not grow."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from typing import Any

import aiohttp
import openai
import pytest

from engine.models.store import ModelStore
from loadtest import machine
from loadtest.gateway_process import GatewayProcess
from loadtest.local_engine import MODEL

pytestmark = pytest.mark.slow

CONFIG = f"""
[models.{MODEL}]
[inference]
kv_cache_bytes = 134_217_728
"""
MESSAGES: Any = [{"role": "user", "content": "Name three colours."}]
GREEDY: Any = {"model": MODEL, "temperature": 0.0}

NUM_REQUESTS = 2000
NUM_CLIENTS = 16
GROWTH_MB = 10.0  # over the second half: an allocator's noise, not 5 kB a request


@pytest.fixture(scope="module")
def gateway() -> Iterator[GatewayProcess]:
    ModelStore().pull(MODEL)
    with GatewayProcess(CONFIG) as process:
        yield process


@pytest.fixture(scope="module")
def client(gateway: GatewayProcess) -> Iterator[openai.OpenAI]:
    with openai.OpenAI(
        base_url=f"{gateway.http_url}/v1", api_key="unused", max_retries=0, timeout=60.0
    ) as client:
        yield client


def test_the_model_is_listed(client: openai.OpenAI) -> None:
    assert MODEL in [model.id for model in client.models.list()]


def test_chat_is_the_same_in_one_piece_and_as_a_stream(client: openai.OpenAI) -> None:
    whole = client.chat.completions.create(messages=MESSAGES, max_tokens=40, **GREEDY)
    content = whole.choices[0].message.content
    assert content
    assert whole.choices[0].message.role == "assistant"
    assert whole.usage is not None
    assert whole.usage.total_tokens == whole.usage.prompt_tokens + whole.usage.completion_tokens

    stream = client.chat.completions.create(
        messages=MESSAGES,
        max_tokens=40,
        stream=True,
        stream_options={"include_usage": True},
        **GREEDY,
    )
    *chunks, last = stream
    assert [chunk.choices[0].delta.role for chunk in chunks][:2] == ["assistant", None]
    assert "".join(chunk.choices[0].delta.content or "" for chunk in chunks) == content
    reasons = [chunk.choices[0].finish_reason for chunk in chunks]
    assert reasons == [None] * (len(chunks) - 1) + [whole.choices[0].finish_reason]
    assert last.choices == []
    assert last.usage is not None
    assert last.usage.completion_tokens == whole.usage.completion_tokens


def test_completions_are_the_same_in_one_piece_and_as_a_stream(client: openai.OpenAI) -> None:
    asked: Any = {"prompt": "The capital of France is", "max_tokens": 12, **GREEDY}
    whole = client.completions.create(**asked, extra_body={"ignore_eos": True})
    assert "Paris" in whole.choices[0].text
    assert whole.choices[0].finish_reason == "length"
    assert whole.usage is not None
    assert whole.usage.completion_tokens == 12

    chunks = list(client.completions.create(**asked, stream=True, extra_body={"ignore_eos": True}))
    assert "".join(chunk.choices[0].text for chunk in chunks) == whole.choices[0].text
    assert chunks[-1].choices[0].finish_reason == "length"


@pytest.mark.parametrize("is_stream", [False, True], ids=["whole", "stream"])
def test_an_answer_ends_before_its_stop_string(client: openai.OpenAI, is_stream: bool) -> None:
    asked: Any = {"prompt": "One two three four five six seven", "max_tokens": 40, **GREEDY}
    full = client.completions.create(**asked).choices[0].text
    stop = full[len(full) // 2 :][:5]
    expected = full[: full.index(stop)]
    if is_stream:
        chunks = list(client.completions.create(**asked, stop=stop, stream=True))
        text = "".join(chunk.choices[0].text for chunk in chunks)
        reason = chunks[-1].choices[0].finish_reason
    else:
        (choice,) = client.completions.create(**asked, stop=[stop]).choices
        text, reason = choice.text, choice.finish_reason
    assert (text, reason) == (expected, "stop")


def test_a_seed_gives_the_same_answer_again(client: openai.OpenAI) -> None:
    asked: Any = {"model": MODEL, "messages": MESSAGES, "max_tokens": 24, "temperature": 1.0}
    answers = [
        client.chat.completions.create(**asked, seed=seed).choices[0].message.content
        for seed in (7, 7, 8)
    ]
    assert answers[0] == answers[1]
    assert answers[0] != answers[2]


@pytest.mark.parametrize(
    "unsupported",
    [{"n": 2}, {"logprobs": True}, {"logit_bias": {"5": 1}}, {"tools": [{"type": "function"}]}],
    ids=lambda unsupported: next(iter(unsupported)),
)
def test_what_is_not_supported_is_refused_by_name(
    client: openai.OpenAI, unsupported: dict[str, Any]
) -> None:
    with pytest.raises(openai.BadRequestError) as refused:
        client.chat.completions.create(messages=MESSAGES, **GREEDY, **unsupported)
    assert refused.value.param == next(iter(unsupported))


def test_a_prompt_that_never_fits_is_refused_and_the_next_is_answered(
    client: openai.OpenAI,
) -> None:
    with pytest.raises(openai.BadRequestError):
        client.completions.create(prompt="many " * 20_000, max_tokens=4, **GREEDY)
    assert client.completions.create(prompt="few", max_tokens=4, **GREEDY).usage is not None


async def test_memory_is_flat_over_two_thousand_requests(
    gateway: GatewayProcess, capsys: pytest.CaptureFixture[str]
) -> None:
    (worker,) = gateway.worker_pids
    half = range(NUM_REQUESTS // 2)
    await ask_often(gateway, half)
    before = {pid: machine.rss_megabytes(pid) for pid in (gateway.pid, worker)}
    await ask_often(gateway, [number + len(half) for number in half])
    after = {pid: machine.rss_megabytes(pid) for pid in before}
    with capsys.disabled():
        print(  # noqa: T201 - the figures are what the test is for
            f"\n{NUM_REQUESTS} requests; after the first half and at the end: gateway "
            f"{before[gateway.pid]:.1f} and {after[gateway.pid]:.1f} MB, worker "
            f"{before[worker]:.1f} and {after[worker]:.1f} MB"
        )
    assert all(after[pid] - before[pid] < GROWTH_MB for pid in before)


async def ask_often(gateway: GatewayProcess, numbers: range | list[int]) -> None:
    """All different, so that the prefix cache is turned over; every other one as a stream."""
    waiting = iter(numbers)

    async def work() -> None:
        for number in waiting:
            await ask(session, gateway.http_url, number)

    async with aiohttp.ClientSession() as session, asyncio.TaskGroup() as tasks:
        for number in range(NUM_CLIENTS):
            tasks.create_task(work(), name=f"client {number}")


async def ask(session: aiohttp.ClientSession, url: str, number: int) -> None:
    body = {
        "model": MODEL,
        "prompt": f"{number} is a number, and so is {number * 7919}; after them comes",
        "max_tokens": 4,
        "stream": number % 2 == 0,
    }
    async with session.post(f"{url}/v1/completions", json=body) as response:
        assert response.status == 200
        assert await response.read()
