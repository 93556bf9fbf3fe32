"""Admission of frames: what is accepted, what is refused and why, and what it costs."""

from __future__ import annotations

import json
import struct
from typing import Any

import pytest

from engine.errors import Overloaded, Unavailable
from gateway.config_sections import LimitsConfig, StreamsConfig
from gateway.errors import CloseCode, ConnectionFault
from gateway.wire.codec import FrameFlags, MessageType
from gateway.wire.messages import (
    ClientPong,
    Close,
    Credit,
    Drop,
    EndInput,
    ErrorMessage,
    Ping,
    ResultMessage,
    StreamKind,
)
from tests.fakes.session_client import SessionClient, jpeg

pytestmark = pytest.mark.unit

MORE = FrameFlags.MORE


def a_client(**arguments: Any) -> SessionClient:
    return SessionClient(**arguments).hello()


def refusals(client: SessionClient) -> list[tuple[str, int]]:
    found = []
    for error in client.receive_only(ErrorMessage):
        assert isinstance(error.seq, int)
        found.append((error.problem.type.rsplit(":", 1)[-1], error.seq))
    return found


def counts(client: SessionClient) -> tuple[int, int, int]:
    """Received, refused, accepted."""
    totals = client.registry.statistics().models["fake"]
    return totals.received, totals.refused, totals.accepted


def test_a_frame_goes_to_its_lane_with_an_absolute_deadline() -> None:
    client = a_client()
    lane = client.open(deadline_ms=300.0)
    client.send_frame(7, jpeg(padding=10))
    (item,) = lane.offered
    assert item.id == 7
    assert bytes(item.payload) == jpeg(padding=10)
    assert item.deadline == pytest.approx(client.loop.time() + 0.3)
    assert (item.meta, item.options) == (b"", b"")


def test_a_deadline_counts_from_the_capture_once_the_clients_clock_is_known() -> None:
    client = SessionClient().hello()
    lane = client.open(deadline_ms=300.0)
    client.loop.advance(10.0)
    (ping,) = client.receive_only(Ping)
    answered_us = 5_000
    client.send(ClientPong(t=ping.t, now_us=answered_us))
    answered_at = client.loop.time()
    half_trip_s = (answered_at - ping.t / 1e6) / 2
    client.loop.advance(0.05)
    client.send_frame(1_000)  # captured at 10,000 us of the client's clock
    captured_at = answered_at - half_trip_s + 0.005
    assert lane.offered[-1].deadline == pytest.approx(captured_at + 0.3)


def test_a_client_that_tells_no_time_has_deadlines_from_arrival() -> None:
    client = SessionClient().hello()
    lane = client.open(deadline_ms=300.0)
    client.loop.advance(10.0)
    (ping,) = client.receive_only(Ping)
    client.send(ClientPong(t=ping.t))
    client.send_frame(1_000)
    assert lane.offered[-1].deadline == pytest.approx(client.loop.time() + 0.3)


def test_lossless_frames_have_no_deadline() -> None:
    client = a_client()
    lane = client.open(policy="lossless")
    client.send_frame(1)
    assert lane.offered[0].deadline is None


def test_tensors_carry_their_meta() -> None:
    client = a_client()
    lane = client.open(kind=StreamKind.TENSORS)
    meta = b'{"tensors":[]}'
    client.send_frame(1, bytes(16), meta=meta, kind=MessageType.TENSORS)
    assert lane.offered[0].meta.rstrip() == meta


def test_gaps_in_seq_are_legal() -> None:
    client = a_client()
    lane = client.open(policy="fifo")
    client.send_frame(3)
    client.send_frame(1000)
    assert [item.id for item in lane.offered] == [3, 1000]


@pytest.mark.parametrize("seq", [4, 5])
def test_seq_must_rise(seq: int) -> None:
    client = a_client()
    client.open()
    client.send_frame(5)
    client.send_frame(seq)
    assert refusals(client) == [("seq-not-rising", seq)]
    assert counts(client) == (2, 1, 1)


@pytest.mark.parametrize(
    ("payload", "slug"),
    [
        (b"", "unknown-codec"),
        (b"GIF89a..........", "unknown-codec"),
        (jpeg()[:8], "invalid-picture"),
        (jpeg(65500, 65500), "picture-too-large"),
        (jpeg(8193, 16), "picture-too-large"),
        (jpeg(8192, 8192), "picture-too-large"),
    ],
)
def test_a_payload_that_cannot_be_decoded_is_refused_by_its_header(
    payload: bytes, slug: str
) -> None:
    client = a_client()
    lane = client.open()
    client.send_frame(1, payload)
    assert refusals(client) == [(slug, 1)]
    assert lane.offered == []
    assert counts(client) == (1, 1, 0)
    client.send_frame(2)
    assert len(lane.offered) == 1


def test_another_codec_than_agreed_is_refused() -> None:
    client = a_client()
    client.open(codec="png")
    client.send_frame(1)
    assert refusals(client) == [("unknown-codec", 1)]


@pytest.mark.parametrize(
    ("stream_kind", "message_type"),
    [
        (StreamKind.FRAMES, MessageType.TENSORS),
        (StreamKind.FRAMES, MessageType.ANNOTATED_FRAME),
        (StreamKind.TENSORS, MessageType.FRAME),
    ],
)
def test_the_type_must_be_the_streams(stream_kind: StreamKind, message_type: MessageType) -> None:
    client = a_client()
    client.open(kind=stream_kind)
    client.send_frame(1, kind=message_type)
    assert refusals(client) == [("invalid-message", 1)]


def test_tensors_need_meta_and_payload() -> None:
    client = a_client()
    client.open(kind=StreamKind.TENSORS)
    client.send_frame(1, bytes(16), kind=MessageType.TENSORS)
    client.send_frame(2, b"", meta=b"{}", kind=MessageType.TENSORS)
    assert refusals(client) == [("invalid-input", 1), ("invalid-input", 2)]


# --- credit


def test_frames_beyond_the_credit_are_refused() -> None:
    client = a_client(streams=StreamsConfig(latest_credit=2))
    lane = client.open()
    for seq in range(2):
        client.send_frame(seq)
    client.send_frame(2)
    assert len(lane.offered) == 2
    assert refusals(client) == [("credit-exceeded", 2)]


def test_bytes_beyond_the_credit_are_refused() -> None:
    client = a_client(streams=StreamsConfig(credit_bytes=64 * 1024))
    lane = client.open()
    client.send_frame(1, jpeg(padding=40_000))
    client.send_frame(2, jpeg(padding=40_000))
    assert refusals(client) == [("credit-exceeded", 2)]
    lane.answer(1)
    client.receive()
    client.send_frame(3, jpeg(padding=100_000))
    assert [item.id for item in lane.offered] == [1, 3]


def test_a_client_quicker_than_our_bookkeeping_is_not_refused() -> None:
    client = a_client(streams=StreamsConfig(latest_credit=1))
    lane = client.open()
    client.receive()
    client.send_frame(1)
    lane.answer(1)
    assert client.take() is not None  # written, but ``handle_sent`` has not been called yet
    client.send_frame(2)
    assert refusals(client) == []


def test_refused_frames_give_their_credit_back() -> None:
    client = a_client(streams=StreamsConfig(latest_credit=2))
    client.open()
    client.receive()
    granted = 2
    for seq in range(10):
        assert seq < granted
        client.send_frame(seq, b"nonsense")
        for credit in client.receive_only(Credit):
            assert credit.max_frames > granted
            granted = credit.max_frames


def test_ignoring_credit_ends_the_connection() -> None:
    client = a_client(streams=StreamsConfig(latest_credit=2))
    client.open()
    for seq in range(4):
        client.send_frame(seq)
    with pytest.raises(ConnectionFault) as fault:
        client.send_frame(4)
    assert fault.value.code is CloseCode.QUOTA


def test_overrunning_credit_ends_the_connection_though_every_refusal_is_told_at_once() -> None:
    client = a_client(streams=StreamsConfig(latest_credit=2, credit_bytes=64 * 1024))
    client.open()
    client.send_frame(0, jpeg(padding=60_000))
    for seq in range(1, 5):
        client.send_frame(seq, jpeg(padding=60_000))
        assert refusals(client) == [("credit-exceeded", seq)]
    with pytest.raises(ConnectionFault) as fault:
        client.send_frame(5, jpeg(padding=60_000))
    assert fault.value.code is CloseCode.QUOTA


def test_overrunning_credit_now_and_then_is_only_refused() -> None:
    client = a_client(streams=StreamsConfig(latest_credit=2, credit_bytes=64 * 1024))
    client.open(deadline_ms=60_000)
    client.send_frame(0, jpeg(padding=60_000))
    for seq in range(1, 30):
        client.loop.advance(0.3)
        client.send_frame(seq, jpeg(padding=60_000))
        assert refusals(client) == [("credit-exceeded", seq)]


# --- pieces


def test_pieces_make_one_frame() -> None:
    client = a_client()
    lane = client.open()
    payload = jpeg(padding=1000)
    client.send_frame(1, payload[:500], flags=MORE)
    client.send_frame(1, payload[500:800], flags=MORE)
    assert lane.offered == []
    client.send_frame(1, payload[800:])
    assert bytes(lane.offered[0].payload) == payload
    assert counts(client) == (1, 0, 1)


def test_pieces_of_two_streams_may_mix_but_not_two_frames_of_one() -> None:
    client = a_client()
    client.open(1)
    client.open(2)
    client.send_frame(1, jpeg(), stream=1, flags=MORE)
    client.send_frame(1, jpeg(), stream=2, flags=MORE)
    client.send_frame(1, b"x", stream=1)
    with pytest.raises(ConnectionFault) as fault:
        client.send_frame(2, jpeg(), stream=2)
    assert fault.value.code is CloseCode.PROTOCOL_ERROR


def test_a_frame_too_large_is_refused_once_and_its_bytes_come_back() -> None:
    client = a_client(
        limits=LimitsConfig(max_frame_bytes=1024), streams=StreamsConfig(latest_credit=1)
    )
    client.open()
    client.receive()
    for _ in range(5):
        client.send_frame(1, bytes(500), flags=MORE)
    client.send_frame(1, bytes(500))
    error, credit = client.receive()
    assert isinstance(error, ErrorMessage)
    assert error.problem.type.endswith("frame-too-large")
    assert isinstance(credit, Credit)
    client.send_frame(2, jpeg())
    assert counts(client) == (2, 1, 1)
    stream = next(iter(client.session._streams))
    assert stream.credit.bytes_in_flight == len(jpeg())


def test_a_frame_whose_pieces_do_not_come_is_refused_and_the_stream_goes_on() -> None:
    client = a_client(limits=LimitsConfig(assembly_timeout_s=2.0))
    lane = client.open()
    client.receive()
    client.send_frame(1, jpeg(), flags=MORE)
    client.loop.advance(3.0)
    assert refusals(client) == [("timeout", 1)]
    client.send_frame(1, b"late")
    client.send_frame(2)
    assert [item.id for item in lane.offered] == [2]
    assert counts(client) == (2, 1, 1)


@pytest.mark.parametrize("ending", [Close(stream=1), EndInput(stream=1)])
def test_an_unfinished_frame_goes_with_its_stream(ending: Close | EndInput) -> None:
    client = a_client(limits=LimitsConfig(assembly_timeout_s=2.0))
    client.open()
    client.receive()
    client.send_frame(1, jpeg(), flags=MORE)
    client.send(ending)
    client.receive()
    client.loop.advance(5.0)
    assert client.receive_only(ErrorMessage) == []
    assert client.session._ingest._assembler.size_bytes == 0


def test_pieces_for_an_unknown_stream_are_answered_once() -> None:
    client = a_client()
    client.send_frame(1, jpeg(), stream=9, flags=MORE)
    client.send_frame(1, jpeg(), stream=9)
    assert refusals(client) == [("unknown-stream", 1)]


# --- the lane's answer


def test_a_full_lane_is_a_drop() -> None:
    client = a_client()
    client.open()
    client.receive()
    client.engine.refusal = Overloaded("full")
    client.send_frame(1)
    (drop,) = client.receive_only(Drop)
    assert (drop.reason, drop.first, drop.last, drop.count) == ("queue_full", 1, 1, 1)
    assert counts(client) == (1, 0, 1)


def test_a_model_that_cannot_serve_is_an_error_on_an_accepted_frame() -> None:
    client = a_client()
    client.open()
    client.engine.refusal = Unavailable("the circuit is open", retry_after_s=2.0)
    client.send_frame(1)
    (error,) = client.receive_only(ErrorMessage)
    assert error.problem.type.endswith("unavailable")
    assert (error.retryable, error.retry_after_ms) == (True, 2000)
    totals = client.registry.statistics().models["fake"]
    assert (totals.accepted, totals.errors) == (1, 1)


def test_superseded_frames_are_told_at_once() -> None:
    client = a_client()
    client.open()
    client.receive()
    for seq in range(3):
        client.send_frame(seq)
    (drop,) = client.receive_only(Drop)
    assert (drop.reason, drop.first, drop.last, drop.count) == ("superseded", 0, 1, 2)


def test_frames_beyond_max_fps_are_superseded() -> None:
    client = a_client()
    lane = client.open(max_fps=10.0)
    dropped = 0
    for seq in range(60):
        client.send_frame(seq)
        lane.answer(seq)
        dropped += sum(drop.count for drop in client.receive_only(Drop))
        client.loop.advance(0.05)
    assert len(lane.offered) == pytest.approx(31, abs=2)
    assert dropped == 60 - len(lane.offered)


def test_a_source_at_exactly_max_fps_loses_nothing() -> None:
    client = a_client()
    lane = client.open(max_fps=30.0)
    for seq in range(300):
        client.send_frame(seq)
        lane.answer(seq)
        client.receive()
        client.loop.advance(1 / 30)
    assert len(lane.offered) == 300


def test_at_most_fifteen_frames_a_second_are_annotated() -> None:
    client = a_client()
    lane = client.open(annotate="boxes")
    for seq in range(90):
        client.send_frame(seq)
        lane.answer(seq)
        client.receive()
        client.loop.advance(1 / 30)
    annotated = [item for item in lane.offered if item.options]
    assert len(annotated) == pytest.approx(46, abs=1)
    assert json.loads(annotated[0].options) == {"annotate": "boxes"}


def test_every_frame_of_a_lossless_stream_is_annotated() -> None:
    client = a_client()
    lane = client.open(policy="lossless", annotate="boxes")
    for seq in range(90):
        client.send_frame(seq)
        lane.answer(seq)
        client.receive()
    assert all(item.options for item in lane.offered)


def test_one_streams_refusals_leave_the_others_alone() -> None:
    client = a_client()
    client.open(1)
    lane = client.open(2)
    client.receive()
    client.send_frame(1, b"nonsense", stream=1)
    client.send_frame(1, stream=2)
    lane.answer(1)
    kinds = {type(message) for message in client.receive()}
    assert kinds == {ErrorMessage, ResultMessage}


def test_garbage_is_answered_and_never_raises_anything_else() -> None:
    client = a_client()
    client.open()
    header = struct.pack("<BBHIQQII", 1, 1, 0, 1, 1, 0, 0, 0)
    for length in range(len(jpeg())):
        try:
            client.session.receive_binary(header + jpeg()[:length])
        except ConnectionFault:
            pass
        client.receive()
    for length in range(32):
        with pytest.raises(ConnectionFault):
            client.session.receive_binary(header[:length])
