"""From outcomes to receipts: order, exactly once, credit, endings."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from engine.errors import InternalError, InvalidInput
from engine.types import Attachment, AttachmentKind, Dropped, DropReason, Failed
from gateway.config_sections import LimitsConfig, StreamsConfig
from gateway.errors import CloseCode
from gateway.stream.entries import Outgoing
from gateway.wire.codec import decode_binary
from gateway.wire.messages import (
    PIECE_BYTES,
    Cancel,
    Close,
    Closed,
    Credit,
    Drop,
    EndInput,
    ErrorMessage,
    ResultMessage,
)
from tests.fakes.scripted_engine import ScriptedLane, a_result
from tests.fakes.session_client import SessionClient

pytestmark = pytest.mark.unit


def a_stream(
    frames: int, *, limits: LimitsConfig | None = None, **options: Any
) -> tuple[SessionClient, ScriptedLane]:
    """A fifo stream with frames 0..frames-1 in its lane."""
    client = SessionClient(limits=limits).hello()
    lane = client.open(**{"policy": "fifo", **options})
    client.receive()
    for seq in range(frames):
        client.send_frame(seq)
    return client, lane


def seqs(messages: list[ResultMessage]) -> list[int]:
    return [message.seq for message in messages]


def totals_of(client: SessionClient) -> Any:
    client.registry.check_integrity()
    client.outbox.check_integrity()
    return client.registry.statistics().models["fake"]


def test_a_result_carries_the_frames_labels_and_where_its_time_went() -> None:
    client, lane = a_stream(2)
    arrived_us = client.clock.now_us()
    client.loop.advance(0.25)
    lane.answer(1)
    client.loop.advance(0.5)
    lane.answer(0)
    first, second = client.receive_only(ResultMessage)
    assert (first.stream, first.seq, first.t_us, first.model, first.version) == (
        1, 0, 0, "fake", "1",
    )  # fmt: skip
    assert bytes(first.data) == b'{"objects":[]}'
    assert (first.timing.received_us, first.timing.order) == (arrived_us, 0)
    assert second.timing.order == pytest.approx(500_000, abs=1)


def test_results_leave_in_order_whatever_order_they_come_in() -> None:
    client, lane = a_stream(4)
    for seq in (2, 3, 1):
        lane.answer(seq)
        assert client.receive_only(ResultMessage) == []
    lane.answer(0)
    assert seqs(client.receive_only(ResultMessage)) == [0, 1, 2, 3]


@pytest.mark.parametrize(
    "outcome",
    [Dropped(DropReason.DEADLINE), Failed(InvalidInput("broken")), None],
    ids=["drop", "error", "cancel"],
)
def test_whatever_becomes_of_the_first_frame_the_others_go_on(outcome: Any) -> None:
    client, lane = a_stream(3)
    lane.answer(1)
    if outcome is None:
        client.send(Cancel(stream=1, seq=0))
    else:
        lane.answer(0, outcome)
    assert seqs(client.receive_only(ResultMessage)) == [1]


def test_drops_and_errors_do_not_wait_for_earlier_frames() -> None:
    client, lane = a_stream(3)
    lane.answer(1, Dropped(DropReason.DEADLINE))
    lane.answer(2, Failed(InvalidInput("broken")))
    drop, error = (each for each in client.receive() if not isinstance(each, Credit))
    assert isinstance(drop, Drop)
    assert (drop.reason, drop.first) == ("deadline", 1)
    assert isinstance(error, ErrorMessage)
    assert (error.seq, error.problem.detail) == (2, "broken")


def test_an_internal_fault_tells_only_its_reference() -> None:
    client, lane = a_stream(1)
    lane.answer(0, Failed(InternalError("abc123")))
    (error,) = client.receive_only(ErrorMessage)
    assert (error.problem.status, error.problem.detail) == (500, "reference abc123")


def test_an_outcome_that_comes_twice_changes_nothing() -> None:
    client, lane = a_stream(2)
    lane.answer(0)
    lane.emit_again(0, a_result())
    lane.answer(1, Dropped(DropReason.DEADLINE))
    lane.emit_again(1, Dropped(DropReason.DEADLINE))
    lane.emit_again(77, a_result())
    client.receive()
    totals = totals_of(client)
    assert (totals.results, totals.dropped, totals.in_flight) == (1, {"deadline": 1}, 0)


def test_a_cancelled_frame_is_told_as_a_drop_and_counted_on_its_own() -> None:
    client, _ = a_stream(2)
    client.send(Cancel(stream=1, seq=1))
    (drop,) = client.receive_only(Drop)
    assert (drop.reason, drop.first) == ("cancelled", 1)
    totals = totals_of(client)
    assert (totals.cancelled, totals.dropped) == (1, {})


def test_a_held_result_can_be_cancelled_and_a_queued_one_cannot() -> None:
    client, lane = a_stream(3)
    lane.answer(2)
    client.send(Cancel(stream=1, seq=2))
    assert [drop.first for drop in client.receive_only(Drop)] == [2]
    lane.answer(0)
    client.send(Cancel(stream=1, seq=0))
    client.send(Cancel(stream=1, seq=99))
    assert seqs(client.receive_only(ResultMessage)) == [0]


def test_attachments_come_before_the_result_that_names_them() -> None:
    client, lane = a_stream(1)
    picture = Attachment(
        kind=AttachmentKind.ANNOTATED_FRAME, meta=b'{"codec":"jpeg"}', payload=b"x" * 300_000
    )
    lane.answer(0, a_result(attachments=[picture]))
    *pieces, result = client.receive_only(object)[:4]
    assert isinstance(result, ResultMessage)
    assert isinstance(result.attachments, list)
    assert [(ref.kind, ref.bytes) for ref in result.attachments] == [(3, 300_000)]
    payload = b""
    for piece in pieces:
        assert isinstance(piece, Outgoing)
        message = decode_binary(piece.data)
        assert (message.header.stream, message.header.seq) == (1, 0)
        assert len(message.payload) <= PIECE_BYTES
        payload += message.payload
    assert payload == picture.payload


def test_a_result_too_large_for_one_message_is_an_error() -> None:
    client, lane = a_stream(2)
    lane.answer(0, a_result(msgspec.json.encode("x" * 70_000)))
    lane.answer(1)
    error, result = (each for each in client.receive() if not isinstance(each, Credit))
    assert isinstance(error, ErrorMessage)
    assert error.seq == 0
    assert isinstance(result, ResultMessage)
    assert totals_of(client).errors == 1


def test_a_result_that_waited_past_its_deadline_is_late() -> None:
    client, lane = a_stream(2, deadline_ms=100.0)
    lane.answer(0)
    lane.answer(1)
    client.loop.advance(0.2)
    (drop,) = client.receive_only(Drop)
    assert (drop.reason, drop.first, drop.last, drop.count) == ("late", 0, 1, 2)
    assert totals_of(client).dropped == {"late": 2}


def test_a_lossless_result_waits_for_ever() -> None:
    client, lane = a_stream(1, policy="lossless", deadline_ms=100.0)
    lane.answer(0)
    client.loop.advance(5.0)
    assert seqs(client.receive_only(ResultMessage)) == [0]


def test_a_result_counts_when_it_is_handed_to_the_writer() -> None:
    client, lane = a_stream(1)
    lane.answer(0)
    assert totals_of(client).in_flight == 1
    client.take()
    totals = totals_of(client)
    assert (totals.results, totals.in_flight) == (1, 0)
    assert sum(totals.latency.counts) == 1


def test_credit_grows_when_receipts_are_sent() -> None:
    client = SessionClient(streams=StreamsConfig(latest_credit=1)).hello()
    lane = client.open()
    client.receive()
    client.send_frame(0)
    assert client.receive_only(Credit) == []
    lane.answer(0)
    result = client.take()
    assert result is not None
    assert client.take() is None  # not before the receipt is written
    client.session.handle_sent(result)
    (credit,) = client.receive_only(Credit)
    assert (credit.stream, credit.max_frames) == (1, 2)


def test_a_slow_reader_gets_old_results_as_late_and_the_rest_in_order() -> None:
    limits = LimitsConfig(max_outbox_bytes=64 * 1024)
    client, lane = a_stream(30, limits=limits)
    for seq in range(30):
        lane.answer(seq, a_result(msgspec.json.encode("x" * 10_000)))
        assert client.outbox.size_bytes <= 64 * 1024
    messages = [m for m in client.receive() if isinstance(m, Drop | ResultMessage)]
    assert isinstance(messages[0], Drop)
    late = messages[0].count
    results = [m.seq for m in messages if isinstance(m, ResultMessage)]
    assert results == list(range(late, 30))
    assert client.faults == []
    assert totals_of(client).dropped == {"late": late}


def test_a_lossless_stream_that_nobody_reads_ends_the_connection() -> None:
    limits = LimitsConfig(max_outbox_bytes=64 * 1024)
    client, lane = a_stream(32, limits=limits, policy="lossless")
    for seq in range(32):
        lane.answer(seq, a_result(msgspec.json.encode("x" * 20_000)))
    assert [fault.code for fault in client.faults] == [CloseCode.SLOW_READER]


# --- endings


def test_end_finishes_what_is_accepted_and_then_closes() -> None:
    client, lane = a_stream(3)
    client.send(EndInput(stream=1))
    assert client.receive_only(Closed) == []
    lane.answer(2)
    lane.answer(1, Dropped(DropReason.DEADLINE))
    lane.answer(0)
    *_, closed = client.receive()
    assert closed == Closed(stream=1, accepted=3, results=2, dropped=1, errors=0, cancelled=0)


def test_an_empty_stream_closes_at_once() -> None:
    client, _ = a_stream(0)
    client.send(EndInput(stream=1))
    assert client.receive() == [
        Closed(stream=1, accepted=0, results=0, dropped=0, errors=0, cancelled=0)
    ]


def test_close_cancels_what_is_not_on_its_way() -> None:
    client, lane = a_stream(4)
    lane.answer(0)  # queued
    lane.answer(2)  # held behind 1
    client.send(Close(stream=1))
    messages = client.receive()
    results = [m for m in messages if isinstance(m, ResultMessage)]
    drops = [m for m in messages if isinstance(m, Drop)]
    assert seqs(results) == [0]
    assert sum(drop.count for drop in drops) == 3
    assert {drop.reason for drop in drops} == {"cancelled"}
    assert messages[-1] == Closed(stream=1, accepted=4, results=1, dropped=0, errors=0, cancelled=3)
    assert lane.is_closed


def test_close_after_end_stops_what_is_left() -> None:
    client, _ = a_stream(2)
    client.send(EndInput(stream=1))
    client.send(Close(stream=1))
    client.send(Close(stream=1))
    (closed,) = client.receive_only(Closed)
    assert (closed.accepted, closed.cancelled) == (2, 2)


def test_closed_counts_results_that_came_too_late_to_be_sent() -> None:
    client, lane = a_stream(2, deadline_ms=100.0)
    client.send(EndInput(stream=1))
    lane.answer(0)
    lane.answer(1)
    client.loop.advance(1.0)
    drop, closed = client.receive()
    assert isinstance(drop, Drop)
    assert closed == Closed(stream=1, accepted=2, results=0, dropped=2, errors=0, cancelled=0)


def test_a_stream_whose_last_result_is_too_large_closes() -> None:
    client, lane = a_stream(1)
    client.send(EndInput(stream=1))
    lane.answer(0, a_result(msgspec.json.encode("x" * 70_000)))
    error, closed = client.receive()
    assert isinstance(error, ErrorMessage)
    assert closed == Closed(stream=1, accepted=1, results=0, dropped=0, errors=1, cancelled=0)
