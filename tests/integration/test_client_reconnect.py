"""Outages: servers that come back, come back changed, or do not come back."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator

import pytest
from msgspec import UNSET

from gateway.client import (
    AuthError,
    CapturedFrame,
    Client,
    ConnectError,
    Event,
    FrameStream,
    LinkSettings,
    StreamError,
    connect,
    frames_from_bytes,
    streams,
)
from gateway.client.backoff import Backoff
from gateway.wire.codec import BinaryMessage
from gateway.wire.messages import ErrorMessage, Open, Opened
from tests.fakes.stream_server import (
    Peer,
    StreamBooks,
    StreamServer,
    answer_later,
    answer_with_result,
    picture,
    problem,
    stream_server,
    welcome,
)

pytestmark = pytest.mark.integration


def quick(
    url: str,
    *,
    give_up_after_s: float = 5.0,
    is_lost: asyncio.Event | None = None,
    events: list[Event] | None = None,
) -> Client:
    """As ``connect``, with short delays; ``is_lost`` is set when the connection is."""

    def on_event(event: Event) -> None:
        if events is not None:
            events.append(event)
        if is_lost is not None and event.name == "disconnected":
            is_lost.set()

    return Client(
        connect(url)._address,
        api_key=None,
        backoff=Backoff(base_s=0.02, cap_s=0.05),
        give_up_after_s=give_up_after_s,
        on_event=on_event,
        settings=LinkSettings(open_timeout_s=1.0, close_timeout_s=0.5),
    )


def endless(client: Client) -> FrameStream:
    source = frames_from_bytes([picture()], fps=200.0, loop=True)
    return client.stream_frames(source, model="m")


def captured() -> CapturedFrame:
    return CapturedFrame(jpeg=picture(), t_us=time.monotonic_ns() // 1000, width=53, height=37)


async def break_off(peer: Peer, frame: BinaryMessage) -> None:
    peer.socket.transport.abort()


async def test_stream_survives_an_outage_and_drops_at_capture_meanwhile() -> None:
    first, second = StreamServer(), StreamServer()
    first.answer = break_off
    async with stream_server(first) as listening:
        port = listening.sockets[0].getsockname()[1]
        async with quick(first.url) as client:
            stream = endless(client)
            reading = asyncio.create_task(anext(aiter(stream)))
            await first.frame_arrived.wait()
            listening.close(close_connections=False)
            await asyncio.sleep(0.3)
            async with stream_server(second, port=port):
                result = await asyncio.wait_for(reading, 20.0)
                await stream.aclose()
    statistics = stream.statistics
    assert result.seq >= 1
    assert statistics.dropped["disconnected"] >= 1
    assert statistics.dropped_at_capture >= 5
    assert statistics.receipts_add_up
    assert time.monotonic() - result.captured_at < 2.0  # nothing waited through the outage


async def test_server_that_does_not_come_back_is_given_up() -> None:
    server = StreamServer()
    server.answer = break_off
    async with (
        stream_server(server) as listening,
        quick(server.url, give_up_after_s=0.3) as client,
    ):
        reading = asyncio.create_task(anext(aiter(endless(client))))
        await server.frame_arrived.wait()
        listening.close(close_connections=False)
        with pytest.raises(ConnectError, match="cannot reach"):
            await asyncio.wait_for(reading, 20.0)
        assert not client.is_connected


@pytest.mark.parametrize("policy", ["latest", "fifo", "lossless"])
async def test_source_that_ends_during_an_outage_ends_with_the_number_of_lost_frames(
    policy: str,
) -> None:
    server = StreamServer()
    server.answer = break_off
    may_end, is_lost = asyncio.Event(), asyncio.Event()

    async def ends_later() -> AsyncIterator[CapturedFrame]:
        yield captured()
        await may_end.wait()

    async with stream_server(server) as listening, quick(server.url, is_lost=is_lost) as client:
        stream = client.stream_frames(ends_later(), model="m", policy=policy)
        reading = asyncio.create_task(anext(aiter(stream)))
        await server.frame_arrived.wait()
        listening.close(close_connections=False)
        await is_lost.wait()
        may_end.set()
        with pytest.raises(ConnectError, match="1 frame unanswered"):
            await asyncio.wait_for(reading, 20.0)
    assert stream.statistics.receipts_add_up


async def test_frames_of_a_live_source_that_an_outage_swallowed_are_an_error() -> None:
    server = StreamServer()
    is_answered, is_lost = asyncio.Event(), asyncio.Event()

    async def live() -> AsyncIterator[CapturedFrame]:
        yield captured()
        await is_answered.wait()
        server.peers[0].socket.transport.abort()
        await is_lost.wait()
        yield captured()

    async with stream_server(server) as listening, quick(server.url, is_lost=is_lost) as client:
        stream = client.stream_frames(live(), model="m")
        results = aiter(stream)
        await anext(results)
        listening.close(close_connections=False)
        is_answered.set()
        with pytest.raises(ConnectError, match="1 frame not sent"):
            await asyncio.wait_for(anext(results), 20.0)
    assert stream.statistics.dropped_at_capture == 1


async def test_last_attempt_is_made_when_the_budget_ends(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Backoff, "next_delay_s", lambda backoff, cap_s: 60.0)
    server = StreamServer()
    server.answer = break_off
    async with (
        stream_server(server) as listening,
        quick(server.url, give_up_after_s=0.1) as client,
    ):
        reading = asyncio.create_task(anext(aiter(endless(client))))
        await server.frame_arrived.wait()
        listening.close(close_connections=False)
        with pytest.raises(ConnectError, match="cannot reach"):
            await asyncio.wait_for(reading, 20.0)


async def test_key_that_is_no_longer_good_ends_the_attempts() -> None:
    server = StreamServer()
    server.answer = break_off

    async def greet_once(peer: Peer) -> None:
        if len(server.peers) == 1:
            await welcome(peer)
        else:
            await peer.send(ErrorMessage(problem=problem("unauthorized", 401), retryable=False))
            await peer.socket.close(4501)

    server.greet = greet_once
    async with stream_server(server), quick(server.url) as client:
        with pytest.raises(AuthError):
            await anext(aiter(endless(client)))
    assert len(server.peers) == 2


async def test_level_that_another_connection_finds_is_told() -> None:
    server = StreamServer()

    async def greet(peer: Peer) -> None:
        await welcome(peer, "less_input" if len(server.peers) == 1 else UNSET)

    async def answer(peer: Peer, frame: BinaryMessage) -> None:
        await (break_off if len(server.peers) == 1 else answer_with_result)(peer, frame)

    server.greet, server.answer = greet, answer
    events: list[Event] = []
    async with stream_server(server), quick(server.url, events=events) as client:
        stream = endless(client)
        await asyncio.wait_for(anext(aiter(stream)), 20.0)
        await stream.aclose()
    levels = [event.detail for event in events if event.name == "service_level"]
    assert levels == ["less_input", "normal"]


async def test_model_that_is_not_ready_after_a_restart_is_waited_for() -> None:
    server = StreamServer()

    async def opened(peer: Peer, message: Open) -> None:
        if len(server.peers) == 2 and message.stream < 4:
            refusal = problem("unavailable", 503)
            await peer.send(
                ErrorMessage(
                    problem=refusal, retryable=True, retry_after_ms=10, stream=message.stream
                )
            )
        else:
            await peer.send(Opened(stream=message.stream, credit=server.credit))

    async def answer(peer: Peer, frame: BinaryMessage) -> None:
        await (break_off if len(server.peers) == 1 else answer_with_result)(peer, frame)

    server.opened, server.answer = opened, answer
    async with stream_server(server), quick(server.url) as client:
        stream = endless(client)
        await asyncio.wait_for(anext(aiter(stream)), 20.0)
        await stream.aclose()
    assert sorted(server.peers[1].streams) == [2, 3, 4]


async def test_client_can_be_left_during_an_outage() -> None:
    server = StreamServer()
    server.answer = break_off
    async with stream_server(server) as listening, quick(server.url) as client:
        reading = asyncio.create_task(anext(aiter(endless(client)), None))
        await server.frame_arrived.wait()
        listening.close(close_connections=False)
        await asyncio.sleep(0.1)
        started = time.monotonic()
        await client.aclose()
        assert time.monotonic() - started < 1.0
        assert await reading is None


async def test_stream_that_is_never_opened_is_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(streams, "OPEN_TIMEOUT_S", 0.1)
    server = StreamServer()

    async def say_nothing(peer: Peer, message: Open) -> None:
        pass

    server.opened = say_nothing
    async with stream_server(server), quick(server.url) as client:
        with pytest.raises(StreamError, match="did not open"):
            await anext(aiter(endless(client)))


async def test_stream_that_is_never_closed_is_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(streams, "FINISH_TIMEOUT_S", 0.1)
    server = StreamServer()
    server.answer = answer_later

    async def say_nothing(peer: Peer, books: StreamBooks) -> None:
        pass

    server.end = say_nothing
    async with stream_server(server), quick(server.url) as client:
        stream = client.stream_frames(frames_from_bytes([picture()]), model="m")
        with pytest.raises(StreamError, match="did not finish"):
            await anext(aiter(stream))
    assert stream.statistics.unanswered == 1
    assert not stream.statistics.receipts_add_up
