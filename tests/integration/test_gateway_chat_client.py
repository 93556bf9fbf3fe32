"""Prompts over the WebSocket: the Python client against a real gateway."""

from __future__ import annotations

import asyncio

import pytest
from websockets.asyncio.client import connect as connect_websocket

from engine.composite import CompositeEngine
from engine.errors import InvalidInput, Unavailable
from gateway.client import (
    ConnectError,
    FrameStream,
    LostError,
    StreamError,
    TextEvent,
    connect,
    frames_from_bytes,
)
from gateway.wire.codec import encode
from gateway.wire.messages import (
    SUBPROTOCOL,
    Hello,
    Open,
    Prompt,
    StreamKind,
)
from tests.fakes.engine import FakeEngine
from tests.fakes.gateway import running_gateway, size_of, wait_until
from tests.fakes.picture_headers import jpeg_header
from tests.fakes.text_engine import WORDS, TextEngine
from tests.fakes.uvloop_runner import on_uvloop

pytestmark = pytest.mark.integration

MESSAGES = [{"role": "user", "content": "Hello"}]


@on_uvloop
async def test_an_answer_comes_token_by_token_and_ends_with_usage() -> None:
    engine = TextEngine(gap_s=0.002)
    async with running_gateway(engine) as gateway, connect(gateway.url) as client:
        stream = client.stream_chat("fake", MESSAGES, sampling={"max_tokens": 4})
        events = [event async for event in stream]
        assert [event.text for event in events] == ["The", " quick", " brown", " fox", ""]
        assert [event.seq for event in events] == [0, 1, 2, 3, 4]
        assert events[-1].finish_reason == stream.finish_reason == "length"
        assert stream.usage is not None
        assert (stream.usage.prompt_tokens, stream.usage.completion_tokens) == (3, 4)
        assert stream.asked_at is not None
        assert stream.asked_at < events[0].received_at < events[3].received_at
        whole = [event.text async for event in client.stream_chat("fake", prompt="Once")]
        assert "".join(whole) == "".join(WORDS)
        await wait_until(lambda: engine.num_lanes == 0)
        gateway.sessions.check_integrity()
        assert gateway.sessions.statistics().prompts["fake"].results == 2


@on_uvloop
async def test_steady_text_tells_its_pace_and_timing_parts_engine_from_delay() -> None:
    engine = TextEngine(words=["x "] * 12, gap_s=0.0)
    async with running_gateway(engine) as gateway, connect(gateway.url) as client:
        stream = client.stream_chat("fake", MESSAGES, pace="steady", timing=True)
        *tokens, end = [event async for event in stream]
    assert [event.num_tokens for event in tokens] == [1] * 12
    assert all(event.pace_ms is not None and event.pace_ms >= 19.0 for event in tokens[:-1])
    assert tokens[-1].timing is not None
    assert tokens[-1].timing.held_us > 50_000
    assert (end.num_tokens, end.pace_ms, end.timing) == (0, None, None)


@on_uvloop
async def test_unpaced_text_tells_how_many_tokens_came_together() -> None:
    engine = TextEngine(words=["x "] * 300, gap_s=0.0)
    async with running_gateway(engine) as gateway, connect(gateway.url) as client:
        events = [event async for event in client.stream_chat("fake", MESSAGES, pace="off")]
    assert sum(event.num_tokens for event in events) == 300
    assert max(event.num_tokens for event in events) > 1
    assert {event.pace_ms for event in events} == {None}
    assert {event.timing for event in events} == {None}


@on_uvloop
async def test_a_long_answer_is_acknowledged_all_the_way() -> None:
    engine = TextEngine(words=["x"] * 500, gap_s=0.001)
    limits = {"ack_deadline_s": 0.3}
    async with running_gateway(engine, limits=limits) as gateway, connect(gateway.url) as client:
        events = [event async for event in client.stream_chat("fake", MESSAGES)]
    assert len(events) == 501


@on_uvloop
async def test_several_answers_at_once_keep_their_texts() -> None:
    async def read(number: int) -> str:
        stream = client.stream_chat("fake", prompt=str(number), sampling={"max_tokens": number})
        return "".join([event.text async for event in stream])

    async with (
        running_gateway(TextEngine(gap_s=0.001)) as gateway,
        connect(gateway.url) as client,
    ):
        texts = await asyncio.gather(*map(read, range(1, 9)))
    assert texts == ["".join(WORDS[:number]) for number in range(1, 9)]


@on_uvloop
async def test_leaving_the_loop_stops_the_generation() -> None:
    engine = TextEngine(words=["x"] * 1000, gap_s=0.002)
    async with running_gateway(engine) as gateway, connect(gateway.url) as client:
        stream = client.stream_chat("fake", MESSAGES)
        iterator = aiter(stream)
        await anext(iterator)
        await iterator.aclose()
        await wait_until(lambda: engine.cancelled == 1)
        await wait_until(lambda: gateway.sessions.statistics().streams == 0)
        assert stream.finish_reason == "cancelled"
        assert gateway.sessions.statistics().prompts["fake"].cancelled == 1


@on_uvloop
async def test_refusals_and_failures_are_stream_errors() -> None:
    engine = TextEngine(gap_s=0.001)
    async with running_gateway(engine) as gateway, connect(gateway.url) as client:
        with pytest.raises(StreamError, match="no model 'none'"):
            [event async for event in client.stream_chat("none", MESSAGES)]
        with pytest.raises(StreamError, match="temperature"):
            [
                event
                async for event in client.stream_chat(
                    "fake", MESSAGES, sampling={"temperature": "hot"}
                )
            ]
        engine.fail_next(InvalidInput("the context is full"))
        seen: list[TextEvent] = []
        with pytest.raises(StreamError, match="the context is full") as failed:  # noqa: PT012
            async for event in client.stream_chat("fake", MESSAGES):
                seen.append(event)  # noqa: PERF401 - what came before the error counts
        assert [event.text for event in seen] == ["The"]
        assert failed.value.problem is not None
        engine.fail_next(Unavailable("the worker died"))
        with pytest.raises(StreamError, match="the worker died"):
            [event async for event in client.stream_chat("fake", MESSAGES)]
        assert [event async for event in client.stream_chat("fake", MESSAGES)]


def test_a_prompt_that_no_message_holds_is_refused_at_once() -> None:
    async def run() -> None:
        client = connect("ws://127.0.0.1:1")
        with pytest.raises(ValueError, match="chat/completions"):
            client.stream_chat("fake", prompt="x" * 70_000)
        with pytest.raises(ValueError, match="exactly one"):
            client.stream_chat("fake")
        with pytest.raises(ConnectError):
            [event async for event in client.stream_chat("fake", prompt="x")]

    asyncio.run(run())


@on_uvloop
async def test_an_answer_whose_connection_is_lost_ends_with_an_error() -> None:
    engine, limits = TextEngine(gap_s=0.001), {"resume_window_s": 0}
    async with (
        running_gateway(engine, limits=limits) as gateway,
        connect(gateway.url) as client,
    ):
        iterator = aiter(client.stream_chat("fake", MESSAGES))
        await anext(iterator)
        engine.block()
        gateway.connections.abort_all()
        with pytest.raises(LostError, match="the connection was lost"):
            [event async for event in iterator]
        await wait_until(lambda: engine.cancelled == 1)
        engine.unblock()
        await wait_until(lambda: client.is_connected)
        assert [event async for event in client.stream_chat("fake", MESSAGES)]
        gateway.sessions.check_integrity()


@on_uvloop
async def test_a_model_of_pictures_answers_no_prompt_with_nonsense() -> None:
    async with running_gateway(FakeEngine()) as gateway, connect(gateway.url) as client:
        with pytest.raises(StreamError, match="Internal error"):
            [event async for event in client.stream_chat("fake", prompt="x")]


@on_uvloop
async def test_a_reader_that_stops_loses_its_connection_and_nobody_else_does() -> None:
    engine = TextEngine(words=["z" * 1000] * 20_000, gap_s=0.0)
    limits = {"max_outbox_bytes": 65536, "send_timeout_s": 0.5, "ack_deadline_s": 0.5}
    async with running_gateway(engine, limits=limits) as gateway:
        url = gateway.url.replace("http", "ws") + "v1/stream"
        async with connect_websocket(url, subprotocols=[SUBPROTOCOL]) as slow:  # type: ignore[list-item]
            await slow.send(encode(Hello()), text=True)
            open_ = Open(stream=1, model="fake", kind=StreamKind.TOKENS)
            await slow.send(encode(open_), text=True)
            await slow.send(encode(Prompt(stream=1, id="p", prompt="x")), text=True)
            await wait_until(lambda: len(engine.items) == 1)
            slow.transport.pause_reading()
            await wait_until(lambda: engine.num_lanes == 0)
            await wait_until(lambda: gateway.connections.statistics().closed == {4008: 1})
            slow.transport.abort()
        engine.words = WORDS
        async with connect(gateway.url) as client:
            assert [event async for event in client.stream_chat("fake", MESSAGES)]


@on_uvloop
async def test_frames_and_prompts_share_a_connection() -> None:
    engine = CompositeEngine([FakeEngine(("pictures",), respond=size_of), TextEngine(("words",))])
    pictures = frames_from_bytes([jpeg_header(64, 48)] * 50)
    async with running_gateway(engine) as gateway, connect(gateway.url) as client:
        frames = client.stream_frames(pictures, model="pictures", policy="lossless")
        results = asyncio.create_task(_collect(frames))
        texts = [event.text async for event in client.stream_chat("words", MESSAGES)]
        assert len(await results) == 50
    assert "".join(texts) == "".join(WORDS)


async def _collect(frames: FrameStream) -> list[int]:
    return [result.seq async for result in frames]


@on_uvloop
async def test_drain_finishes_answers_and_refuses_new_ones() -> None:
    engine = TextEngine(gap_s=0.01)
    async with running_gateway(engine) as gateway, connect(gateway.url) as client:
        iterator = aiter(client.stream_chat("fake", MESSAGES))
        first = await anext(iterator)
        closing = asyncio.create_task(gateway.aclose())
        rest = [event async for event in iterator]
        await closing
    assert first.text + "".join(event.text for event in rest) == "".join(WORDS)
    assert rest[-1].finish_reason == "stop"
