"""Frame streams over real sockets: credit, receipts, order of life, reconnects."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator

import pytest

from gateway.client import (
    CapturedFrame,
    ConnectError,
    Event,
    FrameResult,
    FrameStream,
    LinkSettings,
    StreamError,
    connect,
    frames_from_bytes,
)
from gateway.client.connection import Client
from gateway.client.statistics import StreamStatistics
from gateway.wire.codec import BinaryMessage
from gateway.wire.messages import (
    CreditGrant,
    ErrorMessage,
    GoAway,
    Open,
    Opened,
)
from tests.fakes.stream_server import (
    Peer,
    StreamBooks,
    StreamServer,
    answer_later,
    picture,
    problem,
    stream_server,
)

pytestmark = pytest.mark.integration

JPEG = picture()


def pictures(count: int) -> list[bytes]:
    return [JPEG + bytes([number % 256]) * 20 for number in range(count)]


async def read_into(seqs: list[int], stream: FrameStream) -> None:
    async for result in stream:
        seqs.append(result.seq)  # noqa: PERF401 - what was read before an error counts


async def collect(client: Client, count: int, policy: str) -> tuple[list[int], StreamStatistics]:
    source = frames_from_bytes(pictures(count))
    stream = client.stream_frames(source, model="centerface", policy=policy)
    return [result.seq async for result in stream], stream.statistics


@pytest.mark.parametrize("policy", ["latest", "fifo", "lossless"])
async def test_every_frame_of_a_source_that_waits_is_answered_in_order(policy: str) -> None:
    server = StreamServer()
    async with stream_server(server), connect(server.url) as client:
        seqs, statistics = await collect(client, 100, policy)
    assert seqs == list(range(100))
    assert (statistics.sent, statistics.results) == (100, 100)
    assert statistics.closed is not None
    assert statistics.closed.accepted == 100
    assert statistics.receipts_add_up
    assert statistics.dropped_at_capture == 0
    assert server.frames[7].payload == pictures(8)[7]


async def test_result_carries_data_timing_latency_and_annotated_picture() -> None:
    server = StreamServer()
    annotated = bytes(200_000)

    async def answer(peer: Peer, frame: BinaryMessage) -> None:
        await peer.result(frame, data=b'{"objects":[{"label":"face"}]}', annotated=annotated)

    server.answer = answer
    results: list[FrameResult] = []
    async with stream_server(server), connect(server.url) as client:
        before = time.monotonic()
        source = frames_from_bytes([JPEG])
        results = [r async for r in client.stream_frames(source, model="m", annotate="boxes")]
    (result,) = results
    assert result.data == {"objects": [{"label": "face"}]}
    assert result.annotated == annotated
    assert result.attachments[0].meta.rstrip() == b'{"codec":"jpeg"}'
    assert result.timing.run == 1000
    assert (result.model, result.version, result.tensors) == ("m", "1", {})
    assert before <= result.captured_at <= time.monotonic()
    assert 0.0 < result.latency_s < 5.0
    assert server.peers[0].streams[1].open.options.annotate == "boxes"


async def test_credit_is_never_exceeded() -> None:
    server = StreamServer()
    server.credit = CreditGrant(max_frames=3, max_bytes=1_000_000)
    in_flight: list[int] = []

    async def answer_in_threes(peer: Peer, frame: BinaryMessage) -> None:
        waiting = peer.streams[1].unanswered
        waiting.append(frame)
        in_flight.append(len(waiting))
        if len(waiting) == 3:
            for held in list(waiting):
                waiting.remove(held)
                await peer.result(held)

    server.answer = answer_in_threes
    async with stream_server(server), connect(server.url) as client:
        seqs, statistics = await collect(client, 30, "lossless")
    assert seqs == list(range(30))
    assert max(in_flight) == 3
    assert statistics.receipts_add_up


async def test_credit_in_bytes_allows_one_frame_at_a_time() -> None:
    server = StreamServer()
    server.credit = CreditGrant(max_frames=100, max_bytes=1)
    async with stream_server(server), connect(server.url) as client:
        seqs, statistics = await collect(client, 5, "lossless")
    assert seqs == list(range(5))
    assert statistics.receipts_add_up


async def test_live_frames_without_credit_are_dropped_at_capture() -> None:
    server = StreamServer()
    server.credit = CreditGrant(max_frames=2, max_bytes=1_000_000)
    server.answer = answer_later

    async def live() -> AsyncIterator[CapturedFrame]:
        while not server.frame_arrived.is_set():  # from here on the stream is open
            yield frame()
            await asyncio.sleep(0.001)
        for _ in range(20):
            yield frame()
        for held in server.peers[0].streams[1].unanswered:
            await server.peers[0].result(held)

    async with stream_server(server), connect(server.url) as client:
        stream = client.stream_frames(live(), model="m")
        seqs = [result.seq async for result in stream]
    assert seqs == [0, 1]
    assert stream.statistics.sent == 2
    assert stream.statistics.dropped_at_capture >= 19
    assert stream.statistics.receipts_add_up


def frame(jpeg: bytes = JPEG) -> CapturedFrame:
    return CapturedFrame(jpeg=jpeg, t_us=time.monotonic_ns() // 1000, width=53, height=37)


async def test_large_frame_travels_in_pieces() -> None:
    server = StreamServer()
    large = JPEG + bytes(300_000)
    async with stream_server(server), connect(server.url) as client:
        stream = client.stream_frames(frames_from_bytes([large, large]), model="m")
        seqs = [result.seq async for result in stream]
    assert seqs == [0, 1]
    assert server.frames[1].payload == large


async def test_frame_beyond_the_servers_limit_is_not_sent() -> None:
    server = StreamServer()
    events: list[Event] = []
    async with stream_server(server), connect(server.url, on_event=events.append) as client:
        source = frames_from_bytes([JPEG, JPEG + bytes(1_000_000), JPEG])
        stream = client.stream_frames(source, model="m")
        seqs = [result.seq async for result in stream]
    assert len(seqs) == 2
    assert stream.statistics.dropped_at_capture == 1
    assert any("exceeds" in event.detail for event in events)


async def test_every_kind_of_receipt_is_counted_and_told() -> None:
    server = StreamServer()
    events: list[Event] = []

    async def answer(peer: Peer, frame: BinaryMessage) -> None:
        match frame.header.seq % 5:
            case 0:
                await peer.result(frame)
            case 1:
                await peer.drop(frame, "deadline")
            case 2:
                await peer.drop(frame, "cancelled")
            case 3:
                await peer.error(frame, "invalid-input")
            case _:
                await peer.error(frame, "unknown-codec", is_refusal=True)

    server.answer = answer
    async with stream_server(server), connect(server.url, on_event=events.append) as client:
        seqs, statistics = await collect(client, 10, "lossless")
    assert seqs == [0, 5]
    assert statistics.dropped == {"deadline": 2}
    assert (statistics.errors, statistics.cancelled, statistics.refused) == (2, 2, 2)
    assert statistics.receipts_add_up
    assert sum(event.name == "drop" for event in events) == 4
    assert sum(event.name == "error" for event in events) == 4


async def test_missing_receipt_shows_in_the_statistics() -> None:
    server = StreamServer()

    async def forget_one(peer: Peer, frame: BinaryMessage) -> None:
        if frame.header.seq != 2:
            await peer.result(frame)

    server.answer = forget_one
    async with stream_server(server), connect(server.url) as client:
        _, statistics = await collect(client, 5, "lossless")
    assert statistics.unanswered == 1
    assert not statistics.receipts_add_up


async def test_totals_that_differ_show_in_the_statistics() -> None:
    server = StreamServer()

    async def answer(peer: Peer, frame: BinaryMessage) -> None:
        await peer.result(frame)
        peer.streams[1].results += frame.header.seq == 2

    server.answer = answer
    async with stream_server(server), connect(server.url) as client:
        _, statistics = await collect(client, 5, "lossless")
    assert not statistics.receipts_add_up


async def test_leaving_the_loop_closes_the_stream_and_its_frames_are_settled() -> None:
    server = StreamServer()

    async def answer(peer: Peer, frame: BinaryMessage) -> None:
        if frame.header.seq == 0:
            await peer.result(frame)
        else:
            await answer_later(peer, frame)

    server.answer = answer
    async with stream_server(server), connect(server.url) as client:
        source = frames_from_bytes(pictures(3), loop=True)
        stream = client.stream_frames(source, model="m", policy="lossless")
        async for _ in stream:
            break
        await stream.aclose()
        assert stream.statistics.cancelled == stream.statistics.sent - 1
        assert stream.statistics.receipts_add_up
        again, _ = await collect_two(client)
        assert again == [0]
    assert list(server.peers[0].streams) == [1, 2]


async def collect_two(client: Client) -> tuple[list[int], StreamStatistics]:
    stream = client.stream_frames(frames_from_bytes(pictures(2)), model="m", policy="lossless")
    seqs: list[int] = []
    async for result in stream:
        seqs.append(result.seq)
        break
    await stream.aclose()
    return seqs, stream.statistics


async def test_several_streams_share_a_connection() -> None:
    server = StreamServer()
    async with stream_server(server), connect(server.url) as client:
        done = await asyncio.gather(*(collect(client, 40, "lossless") for _ in range(3)))
    assert [seqs for seqs, _ in done] == [list(range(40))] * 3
    assert all(statistics.receipts_add_up for _, statistics in done)
    assert len(server.peers) == 1
    assert sorted(server.peers[0].streams) == [1, 2, 3]


async def test_more_streams_than_allowed_are_refused_here() -> None:
    server = StreamServer()
    server.answer = answer_later
    async with stream_server(server), connect(server.url) as client:
        tasks = [asyncio.create_task(collect(client, 1, "lossless")) for _ in range(4)]
        await server.frame_arrived.wait()
        with pytest.raises(StreamError, match="4 streams"):
            await collect(client, 1, "lossless")
        for task in tasks:
            task.cancel()
        await asyncio.wait(tasks)


async def test_refused_stream_says_why() -> None:
    server = StreamServer()

    async def refuse(peer: Peer, message: Open) -> None:
        await peer.send(
            ErrorMessage(problem=problem("unknown-model"), retryable=False, stream=message.stream)
        )

    server.opened = refuse
    async with stream_server(server), connect(server.url) as client:
        with pytest.raises(StreamError, match="unknown-model: why") as caught:
            await collect(client, 5, "lossless")
        assert caught.value.problem == problem("unknown-model")
        assert client.is_connected


async def test_results_are_acknowledged_every_eight_and_after_a_while() -> None:
    server = StreamServer()
    async with stream_server(server):
        async with connect(server.url) as client:
            source = frames_from_bytes(pictures(20))
            async for result in client.stream_frames(source, model="m", policy="lossless"):
                if result.seq == 19:
                    await client.ping()
        acks = server.peers[0].streams[1].acks
    assert [ack.seq for ack in acks][:2] == [7, 15]


async def test_reader_that_lags_stops_a_lossless_producer() -> None:
    server = StreamServer()
    server.credit = CreditGrant(max_frames=1000, max_bytes=10_000_000)
    async with stream_server(server), connect(server.url) as client:
        source = frames_from_bytes(pictures(300))
        stream = client.stream_frames(source, model="m", policy="lossless")
        seqs: list[int] = []
        async for result in stream:
            seqs.append(result.seq)
            if result.seq == 0:
                await client.ping()
                await asyncio.sleep(0.2)
                assert len(server.frames) <= 66
    assert seqs == list(range(300))
    assert stream.statistics.discarded_unread == 0


async def test_reader_that_lags_loses_the_oldest_results_of_latest() -> None:
    server = StreamServer()
    async with stream_server(server), connect(server.url) as client:
        stream = client.stream_frames(frames_from_bytes(pictures(300)), model="m")
        seqs: list[int] = []
        async for result in stream:
            seqs.append(result.seq)
            if result.seq == 0:
                await server.ended.wait()
    assert seqs == sorted(seqs)
    assert seqs[-1] == 299
    assert stream.statistics.discarded_unread == 300 - len(seqs)
    assert stream.statistics.receipts_add_up


async def test_lost_connection_is_replaced_and_the_stream_goes_on() -> None:
    server = StreamServer()
    events: list[Event] = []

    async def break_off_once(peer: Peer, frame: BinaryMessage) -> None:
        if len(server.peers) == 1 and frame.header.seq >= 5:
            await answer_later(peer, frame)
            peer.socket.transport.abort()
        else:
            await peer.result(frame)

    server.answer = break_off_once
    async with stream_server(server), connect(server.url, on_event=events.append) as client:
        seqs, statistics = await collect(client, 50, "lossless")
    assert seqs == sorted(seqs)
    assert seqs[-1] == 49
    assert statistics.dropped["disconnected"] == 50 - len(seqs)
    assert statistics.receipts_add_up
    assert list(server.peers[1].streams) == [2]  # an id is never used twice
    names = [event.name for event in events if event.stream is None]
    assert names == ["connected", "disconnected", "reconnected"]


@pytest.mark.parametrize(("code", "comes_back"), [(1012, True), (4008, True), (4510, False)])
async def test_close_code_decides_whether_the_client_comes_back(
    code: int, comes_back: bool
) -> None:
    server = StreamServer()

    async def close_once(peer: Peer, frame: BinaryMessage) -> None:
        if len(server.peers) == 1:
            await peer.socket.close(code, "reason")
        else:
            await peer.result(frame)

    server.answer = close_once
    async with stream_server(server), connect(server.url) as client:
        if comes_back:
            seqs, statistics = await collect(client, 10, "lossless")
            assert seqs[-1] == 9
            assert statistics.receipts_add_up
        else:
            with pytest.raises(ConnectError) as caught:
                await collect(client, 10, "lossless")
            assert caught.value.code == code
            assert len(server.peers) == 1


async def test_loss_is_final_without_reconnect() -> None:
    server = StreamServer()

    async def abort(peer: Peer, frame: BinaryMessage) -> None:
        peer.socket.transport.abort()

    server.answer = abort
    async with stream_server(server), connect(server.url, reconnect=False) as client:
        with pytest.raises(ConnectError, match="1006"):
            await collect(client, 100, "lossless")
        with pytest.raises(ConnectError):
            await client.ping()
        with pytest.raises(ConnectError):
            await collect(client, 100, "lossless")


@pytest.mark.parametrize("reconnect", [True, False])
async def test_loss_while_the_last_frames_are_awaited_is_an_error(reconnect: bool) -> None:
    server = StreamServer()
    server.answer = answer_later

    async def abort(peer: Peer, books: StreamBooks) -> None:
        peer.socket.transport.abort()

    server.end = abort
    async with stream_server(server), connect(server.url, reconnect=reconnect) as client:
        stream = client.stream_frames(frames_from_bytes(pictures(3)), model="m", policy="lossless")
        with pytest.raises(ConnectError, match="3 frames unanswered"):
            await read_into([], stream)
    assert stream.statistics.dropped == {"disconnected": 3}
    assert stream.statistics.receipts_add_up


async def test_loss_after_the_last_answer_is_no_error() -> None:
    server = StreamServer()

    async def abort(peer: Peer, books: StreamBooks) -> None:
        peer.socket.transport.abort()

    server.end = abort
    async with stream_server(server), connect(server.url) as client:
        seqs, statistics = await collect(client, 3, "lossless")
    assert seqs == [0, 1, 2]
    assert statistics.receipts_add_up


async def test_frames_are_taken_only_once_the_stream_is_open() -> None:
    server = StreamServer()
    may_open = asyncio.Event()
    taken = 0

    async def opened(peer: Peer, message: Open) -> None:
        await may_open.wait()
        await peer.send(Opened(stream=message.stream, credit=server.credit))

    async def single() -> AsyncIterator[CapturedFrame]:
        nonlocal taken
        taken += 1
        yield frame()

    server.opened = opened
    async with stream_server(server), connect(server.url) as client:
        stream = client.stream_frames(single(), model="m")
        seqs: list[int] = []
        reading = asyncio.create_task(read_into(seqs, stream))
        await asyncio.sleep(0.1)
        assert taken == 0
        may_open.set()
        await reading
    assert seqs == [0]
    assert stream.statistics.dropped_at_capture == 0


async def test_nothing_is_sent_after_goaway_until_the_next_connection() -> None:
    server = StreamServer()

    async def go_away(peer: Peer, frame: BinaryMessage) -> None:
        if len(server.peers) > 1:
            await peer.result(frame)
        elif frame.header.seq == 0:
            await peer.send(GoAway(deadline_ms=1000))
            await peer.result(frame)
            await asyncio.sleep(0.1)
            await peer.socket.close(1012)

    server.answer = go_away
    server.credit = CreditGrant(max_frames=1, max_bytes=1_000_000)
    async with stream_server(server), connect(server.url) as client:
        seqs, statistics = await collect(client, 5, "lossless")
    assert seqs == list(range(5))
    assert statistics.dropped == {}
    assert server.peers[0].streams[1].received == 1


async def test_stream_that_the_server_ends_raises_its_reason() -> None:
    server = StreamServer()

    async def end(peer: Peer, frame: BinaryMessage) -> None:
        await peer.result(frame)
        await peer.send(ErrorMessage(problem=problem("unavailable"), retryable=True, stream=1))
        await peer.send(peer.streams[1].closed())

    server.answer = end
    server.credit = CreditGrant(max_frames=1, max_bytes=1_000_000)
    async with stream_server(server), connect(server.url) as client:
        source = frames_from_bytes(pictures(5), loop=True)
        seqs: list[int] = []
        with pytest.raises(StreamError, match="unavailable"):
            await read_into(seqs, client.stream_frames(source, model="m", policy="lossless"))
    assert seqs == [0]


async def test_failing_source_is_raised_after_the_results() -> None:
    server = StreamServer()

    async def broken() -> AsyncIterator[CapturedFrame]:
        yield frame()
        await server.frame_arrived.wait()
        raise OSError("the camera is gone")

    async with stream_server(server), connect(server.url) as client:
        stream = client.stream_frames(broken(), model="m", policy="lossless")
        seqs: list[int] = []
        with pytest.raises(OSError, match="camera is gone"):
            await read_into(seqs, stream)
    assert seqs == [0]
    assert stream.statistics.receipts_add_up


async def test_object_that_is_no_source_is_raised() -> None:
    server = StreamServer()
    async with stream_server(server), connect(server.url) as client:
        with pytest.raises(TypeError):
            async for _ in client.stream_frames(7, model="m"):  # type: ignore[arg-type]
                pass


async def test_fps_thins_a_stream_out_without_counting_losses() -> None:
    server = StreamServer()
    async with stream_server(server), connect(server.url) as client:
        started = time.monotonic()

        async def at_thirty() -> AsyncIterator[CapturedFrame]:
            await client.ping()
            for number in range(30):
                t_us = round((started + number / 30) * 1e6)
                yield CapturedFrame(jpeg=JPEG, t_us=t_us, width=53, height=37)

        source = at_thirty()
        stream = client.stream_frames(source, model="m", policy="lossless", fps=10.0)
        seqs = [result.seq async for result in stream]
    assert len(seqs) == 10
    assert stream.statistics.dropped_at_capture == 0


async def test_stream_is_iterated_once() -> None:
    server = StreamServer()
    async with stream_server(server), connect(server.url) as client:
        stream = client.stream_frames(frames_from_bytes(pictures(1)), model="m")
        assert [result.seq async for result in stream] == [0]
        with pytest.raises(RuntimeError, match="once"):
            async for _ in stream:
                pass


async def test_leaving_the_client_ends_streams_that_are_still_read() -> None:
    server = StreamServer()
    server.answer = answer_later
    async with stream_server(server):
        async with connect(server.url, settings=LinkSettings(close_timeout_s=1.0)) as client:
            reading = asyncio.create_task(collect(client, 1000, "lossless"))
            await server.frame_arrived.wait()
        seqs, statistics = await reading
    assert seqs == []
    assert statistics.cancelled == statistics.sent > 0
    assert statistics.receipts_add_up
