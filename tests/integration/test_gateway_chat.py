"""The OpenAI-compatible HTTP doors over real sockets, with OpenAI's own client."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import aiohttp
import openai
import pytest

from engine.errors import InvalidInput
from engine.types import Priority
from gateway.app import Gateway
from tests.fakes.gateway import running_gateway, wait_until
from tests.fakes.text_engine import WORDS, TextEngine
from tests.fakes.uvloop_runner import on_uvloop

pytestmark = pytest.mark.integration

TEXT = "".join(WORDS)
MESSAGES: Any = [{"role": "user", "content": "Hello"}]


@asynccontextmanager
async def openai_client(
    engine: TextEngine, **tables: Any
) -> AsyncIterator[tuple[openai.AsyncOpenAI, Gateway]]:
    async with (
        running_gateway(engine, **tables) as gateway,
        openai.AsyncOpenAI(
            base_url=f"{gateway.url}v1", api_key="secret", max_retries=0, timeout=5.0
        ) as client,
    ):
        yield client, gateway


async def post(
    gateway: Gateway, body: Any, path: str = "v1/chat/completions", **request: Any
) -> tuple[int, dict[str, Any]]:
    """Status and JSON; everything but 200 must have OpenAI's shape."""
    request = {"json": body, **request} if not isinstance(body, bytes) else {"data": body}
    async with (
        aiohttp.ClientSession() as client,
        client.post(f"{gateway.url}{path}", **request) as response,
    ):
        answer = await response.json(content_type=None)
        if response.status != 200:
            assert response.content_type == "application/json"
            assert set(answer) == {"error"}
            assert set(answer["error"]) == {"message", "type", "param", "code"}
        return response.status, answer


async def events(gateway: Gateway, **body: Any) -> list[Any]:
    """The data of every event of a stream, parsed but for the last."""
    body = {"model": "fake", "messages": MESSAGES, "stream": True, **body}
    async with (
        aiohttp.ClientSession() as client,
        client.post(f"{gateway.url}v1/chat/completions", json=body) as response,
    ):
        assert response.status == 200
        assert response.headers["Content-Type"].startswith("text/event-stream")
        raw = (await response.read()).decode()
    data = [part.removeprefix("data: ") for part in raw.split("\n\n") if part.startswith("data")]
    assert data[-1] == "[DONE]"
    return [json.loads(part) for part in data[:-1]]


# --- OpenAI's client, unmodified


@on_uvloop
async def test_chat_in_one_piece() -> None:
    engine = TextEngine()
    async with openai_client(engine) as (client, _):
        answer = await client.chat.completions.create(model="fake", messages=MESSAGES)
    assert answer.object == "chat.completion"
    assert answer.id.startswith("chatcmpl-")
    assert answer.system_fingerprint == "fake-1"
    assert answer.choices[0].message.content == TEXT
    assert answer.choices[0].message.role == "assistant"
    assert answer.choices[0].finish_reason == "stop"
    assert answer.usage is not None
    assert answer.usage.completion_tokens == len(WORDS)
    assert answer.usage.total_tokens == len(WORDS) + 3
    assert answer._request_id == answer.id
    (message,) = engine.prompts[-1].messages or ()
    assert (message.role, message.content) == ("user", "Hello")
    assert engine.num_lanes == 0


@on_uvloop
async def test_chat_as_a_stream_has_one_chunk_per_token() -> None:
    async with openai_client(TextEngine(gap_s=0.002)) as (client, _):
        stream = await client.chat.completions.create(
            model="fake",
            messages=MESSAGES,
            stream=True,
            stream_options={"include_usage": True},
        )
        chunks = [chunk async for chunk in stream]
    *tokens, usage = chunks
    assert [chunk.choices[0].delta.content for chunk in tokens] == list(WORDS)
    assert [chunk.choices[0].delta.role for chunk in tokens] == ["assistant"] + [None] * 9
    assert [chunk.choices[0].finish_reason for chunk in tokens] == [None] * 9 + ["stop"]
    assert all(chunk.usage is None for chunk in tokens)
    assert usage.choices == []
    assert usage.usage is not None
    assert usage.usage.completion_tokens == len(WORDS)
    assert len({chunk.id for chunk in chunks}) == 1
    told = [chunk.system_fingerprint for chunk in chunks]
    assert told == [None] * 9 + ["fake-1"] * 2  # known at the end


@on_uvloop
async def test_completions_in_one_piece_and_as_a_stream() -> None:
    engine = TextEngine()
    async with openai_client(engine) as (client, _):
        whole = await client.completions.create(model="fake", prompt="Once", max_tokens=4)
        assert (whole.object, whole.choices[0].text) == ("text_completion", "The quick brown fox")
        assert whole.choices[0].finish_reason == "length"
        stream = await client.completions.create(model="fake", prompt=[1, 2, 3], stream=True)
        chunks = [chunk async for chunk in stream]
    assert [chunk.choices[0].text for chunk in chunks] == list(WORDS)
    assert chunks[-1].choices[0].finish_reason == "stop"
    assert {whole.system_fingerprint, chunks[-1].system_fingerprint} == {"fake-1"}
    assert [prompt.prompt for prompt in engine.prompts] == ["Once", (1, 2, 3)]
    assert engine.prompts[-1].sampling.max_tokens == 16


@on_uvloop
async def test_stop_strings_and_limits_reach_the_engine() -> None:
    engine = TextEngine()
    async with openai_client(engine) as (client, _):
        for stop in ("own fox", ["own fox", "never"]):
            answer = await client.chat.completions.create(
                model="fake", messages=MESSAGES, stop=stop
            )
            assert answer.choices[0].message.content == "The quick br"
        answer = await client.chat.completions.create(
            model="fake",
            messages=[
                {"role": "developer", "content": [{"type": "text", "text": "Be"}]},
                {"role": "user", "content": [{"type": "text", "text": "a"}] * 2},  # type: ignore[list-item]
            ],
            max_completion_tokens=2,
            max_tokens=9,
            temperature=0,
            seed=7,
            top_p=0.5,
            user="me",
            metadata={"a": "b"},
            store=False,
            presence_penalty=0,
            n=1,
            response_format={"type": "text"},
            extra_body={
                "top_k": -1,
                "min_p": 0.1,
                "repetition_penalty": 1.1,
                "ignore_eos": True,
                "priority": "realtime",
                "deadline_ms": 5000,
                "pace": "off",
                "stop": None,
                "anything": {"else": 1},
            },
        )
    assert answer.choices[0].finish_reason == "length"
    prompt = engine.prompts[-1]
    assert [(m.role, m.content) for m in prompt.messages or ()] == [
        ("system", "Be"),
        ("user", "a\na"),
    ]
    sampling = prompt.sampling
    assert (sampling.max_tokens, sampling.temperature, sampling.seed) == (2, 0.0, 7)
    assert (sampling.top_k, sampling.top_p, sampling.min_p) == (0, 0.5, 0.1)
    assert (sampling.repetition_penalty, sampling.ignore_eos, sampling.stop) == (1.1, True, ())
    assert engine.specs[-1].priority is Priority.REALTIME
    deadline = engine.items[-1].deadline
    assert deadline is not None
    assert deadline - asyncio.get_running_loop().time() < 5.0


@on_uvloop
async def test_errors_are_the_clients_own_exceptions() -> None:
    engine = TextEngine()
    async with openai_client(engine, server={"api_keys": ["secret"]}) as (client, gateway):
        with pytest.raises(openai.NotFoundError) as absent:
            await client.chat.completions.create(model="none", messages=MESSAGES)
        assert absent.value.code == "model_not_found"
        with pytest.raises(openai.BadRequestError, match="n is not supported") as several:
            await client.chat.completions.create(model="fake", messages=MESSAGES, n=2)
        assert several.value.param == "n"
        engine.set_unavailable("circuit open")
        with pytest.raises(openai.InternalServerError, match="circuit open") as down:
            await client.chat.completions.create(model="fake", messages=MESSAGES)
        assert down.value.status_code == 503
        engine.set_unavailable(None)
        stranger = client.with_options(api_key="wrong")
        with pytest.raises(openai.AuthenticationError) as refused:
            await stranger.chat.completions.create(model="fake", messages=MESSAGES)
        assert refused.value.code == "invalid_api_key"
        assert [model.id async for model in client.models.list()] == ["fake"]
        assert gateway.engine.statistics().models[0].in_flight == 0


@on_uvloop
async def test_an_error_before_the_first_token_has_its_status_and_after_it_is_an_event() -> None:
    engine = TextEngine(gap_s=0.005)
    async with openai_client(engine) as (client, gateway):
        engine.fail_next(InvalidInput("the context is full"))
        stream = await client.chat.completions.create(model="fake", messages=MESSAGES, stream=True)
        first = await anext(aiter(stream))
        assert first.choices[0].delta.content == "The"
        with pytest.raises(openai.APIError, match="the context is full"):
            await anext(aiter(stream))
        engine.block()
        status, _ = await post(
            gateway, {"model": "fake", "messages": MESSAGES, "stream": True, "deadline_ms": 30}
        )
        assert status == 504


# --- refusals


@pytest.mark.parametrize(
    ("members", "param"),
    [
        ({"n": 2}, "n"),
        ({"logprobs": True}, "logprobs"),
        ({"top_logprobs": 3}, "top_logprobs"),
        ({"tools": [{"type": "function"}]}, "tools"),
        ({"tool_choice": "required"}, "tool_choice"),
        ({"response_format": {"type": "json_object"}}, "response_format"),
        ({"logit_bias": {"50256": -100}}, "logit_bias"),
        ({"presence_penalty": 0.5}, "presence_penalty"),
        ({"frequency_penalty": -1}, "frequency_penalty"),
        ({"store": True}, "store"),
        ({"pace": "even"}, "pace"),
        ({"priority": "urgent"}, "priority"),
        ({"temperature": -1}, "temperature"),
        ({"temperature": "hot"}, "temperature"),
        ({"top_p": 0}, "top_p"),
        ({"max_tokens": 0}, "max_tokens"),
        ({"max_completion_tokens": "ten"}, "max_completion_tokens"),
        ({"stop": ["x"] * 99}, "stop"),
        ({"stop": [1]}, "stop[0]"),
        ({"messages": []}, "messages"),
        ({"messages": [{"role": "user"}]}, "messages[0].content"),
        (
            {"messages": [{"role": "user", "content": [{"type": "image_url"}]}]},
            "messages[0].content",
        ),
        ({"messages": "Hello"}, "messages"),
        ({"model": None}, "model"),
        ({"deadline_ms": 1e12}, "deadline_ms"),
    ],
    ids=lambda value: str(value)[:40],
)
def test_what_is_not_supported_is_named(members: dict[str, Any], param: str | None) -> None:
    @on_uvloop
    async def run() -> None:
        async with running_gateway(TextEngine()) as gateway:
            status, answer = await post(gateway, {"model": "fake", "messages": MESSAGES, **members})
            assert status == 400
            assert answer["error"]["type"] == "invalid_request_error"
            assert answer["error"]["param"] == param

    run()


@on_uvloop
async def test_bodies_that_are_none_are_refused() -> None:
    async with running_gateway(TextEngine(), inference={"max_prompt_bytes": 1000}) as gateway:
        for body, status in (
            (b"{", 400),
            (b"[]", 400),
            (b"\xff", 400),
            (b"[" * 100_000, 413),
            (b"[" * 60_000, 400),
            (b'{"model":"fake"}', 400),
        ):
            assert (await post(gateway, body))[0] == status, body[:20]
        several = {"model": "fake", "prompt": ["a", "b"]}
        assert (await post(gateway, several, "v1/completions"))[0] == 400
        async with (
            aiohttp.ClientSession() as client,
            client.get(f"{gateway.url}v1/completions") as response,
        ):
            assert response.status == 405
            assert (await response.json())["error"]["message"]


@on_uvloop
async def test_a_large_body_is_parsed_off_the_loop() -> None:
    engine = TextEngine()
    async with running_gateway(engine) as gateway:
        text = "word " * 40_000
        messages = [{"role": "user", "content": text}]
        status, _ = await post(gateway, {"model": "fake", "messages": messages})
        assert status == 200
        assert (engine.prompts[-1].messages or ())[0].content == text


@on_uvloop
async def test_more_requests_than_the_limit_are_told_to_come_back() -> None:
    engine = TextEngine()
    engine.block()
    async with running_gateway(engine, text={"max_http_requests": 1}) as gateway:
        first = asyncio.create_task(post(gateway, {"model": "fake", "messages": MESSAGES}))
        await wait_until(lambda: engine.num_running == 1)
        status, answer = await post(gateway, {"model": "fake", "messages": MESSAGES})
        assert (status, answer["error"]["code"]) == (429, "rate_limit_exceeded")
        engine.unblock()
        assert (await first)[0] == 200


# --- streams


@on_uvloop
async def test_a_client_that_leaves_stops_the_generation_at_once() -> None:
    engine = TextEngine(gap_s=0.002)
    body = {"model": "fake", "messages": MESSAGES}
    async with running_gateway(engine) as gateway:
        for is_stream in (True, False):
            engine.block()
            before = engine.cancelled
            with pytest.raises(TimeoutError):
                await asyncio.wait_for(post(gateway, {**body, "stream": is_stream}), 0.1)
            # Nothing is written meanwhile that could fail: the loss itself is noticed.
            await wait_until(lambda: engine.cancelled == before + 1)  # noqa: B023
            assert engine.num_lanes == 0
            engine.unblock()
        endings = gateway.sessions.statistics().texts["fake"].endings
        assert endings == {"disconnected": 2}


@on_uvloop
async def test_a_client_that_leaves_in_the_middle_stops_the_generation() -> None:
    engine = TextEngine(words=["x"] * 1000, gap_s=0.005)
    body = {"model": "fake", "messages": MESSAGES, "stream": True}
    async with running_gateway(engine) as gateway, aiohttp.ClientSession() as client:
        async with client.post(f"{gateway.url}v1/chat/completions", json=body) as response:
            assert await response.content.readany()
            engine.block()
        await wait_until(lambda: engine.cancelled == 1)


@on_uvloop
async def test_a_reader_that_stalls_is_cut_off_and_its_generation_ends() -> None:
    engine = TextEngine(words=["y" * 20_000] * 5000, gap_s=0.0)
    limits = {"send_timeout_s": 0.2, "max_outbox_bytes": 65536}
    body = json.dumps({"model": "fake", "messages": MESSAGES, "stream": True}).encode()
    async with running_gateway(engine, limits=limits) as gateway:
        reader, writer = await asyncio.open_connection("127.0.0.1", gateway.port, limit=1024)
        head = (
            b"POST /v1/chat/completions HTTP/1.1\r\nHost: localhost\r\nContent-Length: %d\r\n\r\n"
        )
        writer.write(head % len(body) + body)
        await wait_until(lambda: len(engine.items) == 1)
        await wait_until(lambda: engine.num_lanes == 0)
        writer.transport.abort()
        del reader


@on_uvloop
async def test_a_suspension_of_the_gateway_is_not_held_against_a_reader() -> None:
    engine = TextEngine(words=["y" * 20_000] * 500, gap_s=0.0)
    body = {"model": "fake", "messages": MESSAGES, "stream": True}
    async with (
        running_gateway(engine, limits={"send_timeout_s": 4.0}) as gateway,
        aiohttp.ClientSession(read_bufsize=1024) as client,
        client.post(f"{gateway.url}v1/chat/completions", json=body) as response,
    ):
        await asyncio.sleep(0.2)  # nothing is read: the gateway waits for room
        # As if the process were stopped, and the reader with it.
        asyncio.get_running_loop().call_soon(time.sleep, 4.2)
        assert (await response.text()).rstrip().endswith("data: [DONE]")


@on_uvloop
async def test_a_silent_stream_is_kept_alive_with_comments() -> None:
    engine = TextEngine()
    engine.block()
    body = {"model": "fake", "messages": MESSAGES, "stream": True}
    async with (
        running_gateway(engine, text={"keep_alive_s": 0.05}) as gateway,
        aiohttp.ClientSession() as client,
        client.post(f"{gateway.url}v1/chat/completions", json=body) as response,
    ):
        first = await response.content.readexactly(30)
        assert first.startswith(b": keep-alive\n\n: keep-alive\n\n")
        engine.unblock()
        rest = (await response.read()).decode()
        assert rest.rstrip().endswith("data: [DONE]")


@on_uvloop
async def test_tokens_that_make_nothing_visible_are_no_chunks() -> None:
    async with running_gateway(TextEngine(words=["a", "", "b", ""])) as gateway:
        chunks = await events(gateway, stream_options={"continuous_usage_stats": True})
    assert [chunk["choices"][0]["delta"].get("content") for chunk in chunks] == ["a", "b", None]
    assert chunks[-1]["choices"][0]["finish_reason"] == "stop"


@on_uvloop
async def test_an_empty_answer_is_one_chunk() -> None:
    async with running_gateway(TextEngine(words=[])) as gateway:
        (chunk,) = await events(gateway)
    assert chunk["choices"][0] == {
        "index": 0,
        "delta": {"role": "assistant"},
        "logprobs": None,
        "finish_reason": "stop",
    }


@on_uvloop
async def test_streams_end_with_an_error_when_the_gateway_does() -> None:
    engine = TextEngine(words=["x"] * 10_000, gap_s=0.005)
    async with running_gateway(engine, server={"shutdown_budget_s": 1.0}) as gateway:
        reading = asyncio.create_task(events(gateway))
        await wait_until(lambda: engine.num_running == 1)
        await gateway.aclose()
        *_, last = await reading
        assert last["error"]["code"] == "shutting_down"


@on_uvloop
async def test_metrics_and_health_speak_of_language_models() -> None:
    async with running_gateway(TextEngine()) as gateway, aiohttp.ClientSession() as client:
        await post(gateway, {"model": "fake", "messages": MESSAGES})
        async with client.get(f"{gateway.url}health") as response:
            assert response.status == 200
        async with client.get(f"{gateway.url}metrics") as response:
            lines = (await response.text()).splitlines()
    assert 'scheduler_queue_latency_99{model="fake"} 0.25' in lines
    assert 'clawstream_text_tokens_total{model="fake"} 10.0' in lines
    assert 'clawstream_text_answers_total{model="fake",reason="stop"} 1.0' in lines
    assert 'clawstream_text_first_token_seconds_count{model="fake"} 1.0' in lines
