from __future__ import annotations

from collections.abc import Callable
from typing import Any

import msgspec
import pytest

from engine.types import DropReason
from gateway.stream.entries import (
    DropRange,
    Keep,
    Outgoing,
    OutgoingKind,
    ResultGroup,
)
from gateway.stream.outbox import KEPT_FACTOR, LARGE_BYTES, Outbox, OutboxFull
from gateway.stream.output_budget import OutputBudget
from gateway.wire.messages import Credit, GoAway, ServerPong

pytestmark = pytest.mark.unit


def an_outbox(max_bytes: int = 1 << 20) -> Outbox:
    """Streams 1 and 2 with equal weights; 3 is lossless."""
    outbox = Outbox(max_bytes=max_bytes)
    outbox.open_stream(1, weight=1.0, keep=Keep.TIMELY)
    outbox.open_stream(2, weight=1.0, keep=Keep.TIMELY)
    outbox.open_stream(3, weight=1.0, keep=Keep.ALL)
    return outbox


def a_result(
    seq: int,
    *,
    size: int = 100,
    pieces: tuple[int, ...] = (),
    deadline: float | None = None,
    ready_at: float = 0.0,
) -> ResultGroup:
    return ResultGroup(
        seq=seq,
        ordinal=seq,
        ready_at=ready_at,
        deadline=deadline,
        credit_bytes=1000,
        pieces=tuple(bytes(length) for length in pieces),
        text=bytes(size),
    )


def a_drop(seq: int, reason: DropReason = DropReason.SUPERSEDED) -> DropRange:
    return DropRange(
        reason=reason,
        first_seq=seq,
        last_seq=seq,
        first_ordinal=seq,
        last_ordinal=seq,
        credit_bytes=1000,
    )


def closed(stream: int) -> Outgoing:
    return Outgoing(kind=OutgoingKind.CLOSED, data=b"closed %d" % stream, stream=stream)


def an_event(seq: int, stream: int = 1) -> Outgoing:
    return Outgoing(kind=OutgoingKind.EVENT, data=b"event %d" % seq, stream=stream, seq=seq)


def drain(outbox: Outbox, now: float = 0.0) -> list[Outgoing]:
    taken = []
    while (outgoing := outbox.pop(now)) is not None:
        taken.append(outgoing)
        outbox.check_integrity()
    return taken


def as_json(outgoing: Outgoing) -> dict[str, Any]:
    decoded: dict[str, Any] = msgspec.json.decode(outgoing.data)
    return decoded


def test_an_empty_outbox_has_nothing_to_send() -> None:
    outbox = an_outbox()
    assert outbox.pop(0.0) is None
    assert outbox.is_empty


def test_control_overtakes_streams_and_the_newest_grant_replaces_older_ones() -> None:
    outbox = an_outbox()
    outbox.put(1, a_result(1))
    outbox.put_control(Credit(stream=1, max_frames=9, max_bytes=9))
    outbox.put_control(GoAway(deadline_ms=5))
    outbox.put_control(Credit(stream=1, max_frames=10, max_bytes=10))
    first, second, third = drain(outbox)
    assert as_json(first)["type"] == "goaway"
    assert as_json(second) == {"type": "credit", "stream": 1, "max_frames": 10, "max_bytes": 10}
    assert third.kind is OutgoingKind.RESULT


def test_attachments_go_first_and_the_receipt_is_complete_with_the_result() -> None:
    outbox = an_outbox()
    outbox.put(1, a_result(7, pieces=(10, 20)))
    taken = drain(outbox)
    assert [o.kind for o in taken] == [OutgoingKind.ATTACHMENT] * 2 + [OutgoingKind.RESULT]
    assert [o.is_text for o in taken] == [False, False, True]
    assert [o.num_frames for o in taken] == [0, 0, 1]
    assert {o.seq for o in taken} == {7}


def test_other_streams_and_control_pass_between_the_pieces_of_a_large_attachment() -> None:
    outbox = an_outbox()
    outbox.put(1, a_result(1, pieces=(100_000, 100_000)))
    assert outbox.pop(0.0) is not None
    outbox.put(2, a_result(1))
    outbox.put_control(ServerPong(t=1.0, now_us=1))
    kinds = [(o.kind, o.stream) for o in drain(outbox)]
    assert kinds == [
        (OutgoingKind.CONTROL, None),
        (OutgoingKind.RESULT, 2),
        (OutgoingKind.ATTACHMENT, 1),
        (OutgoingKind.RESULT, 1),
    ]


def test_the_same_stream_does_not_come_between_its_pieces() -> None:
    outbox = an_outbox()
    outbox.put(1, a_result(1, pieces=(10, 10)))
    outbox.pop(0.0)
    outbox.put(1, a_drop(2))
    assert [o.seq for o in drain(outbox)] == [1, 1, 2]


def test_streams_share_the_bytes_by_weight() -> None:
    outbox = Outbox(max_bytes=1 << 20)
    outbox.open_stream(1, weight=3.0, keep=Keep.TIMELY)
    outbox.open_stream(2, weight=1.0, keep=Keep.TIMELY)
    for seq in range(100):
        outbox.put(1, a_result(seq))
        outbox.put(2, a_result(seq))
    first = [outbox.pop(0.0) for _ in range(40)]
    shares = [sum(o is not None and o.stream == stream for o in first) for stream in (1, 2)]
    assert shares == [30, 10]


def test_a_stream_that_was_silent_saves_no_turns() -> None:
    outbox = an_outbox()
    for seq in range(50):
        outbox.put(1, a_result(seq))
    for _ in range(40):
        outbox.pop(0.0)
    for seq in range(10):
        outbox.put(2, a_result(seq))
    streams = [o.stream for o in drain(outbox)][:10]
    assert streams.count(1) == 5


def test_a_result_past_its_deadline_leaves_as_a_drop() -> None:
    outbox = an_outbox()
    settled: list[tuple[int, int, DropReason | None]] = []
    outbox.on_settled = lambda *args: settled.append(args)
    outbox.put(1, a_result(1, deadline=5.0))
    outbox.put(1, a_result(2, deadline=6.0))
    outbox.put(1, a_result(3, deadline=9.0))
    late, result = drain(outbox, now=8.0)
    assert as_json(late) == {
        "type": "drop",
        "stream": 1,
        "reason": "late",
        "from": 1,
        "to": 2,
        "count": 2,
    }
    assert (late.num_frames, late.credit_bytes) == (2, 2000)
    assert result.seq == 3
    assert settled == [(1, 1, DropReason.LATE), (1, 2, DropReason.LATE), (1, 3, None)]


def test_a_group_once_begun_is_finished_past_its_deadline() -> None:
    outbox = an_outbox()
    outbox.put(1, a_result(1, pieces=(10,), deadline=5.0))
    assert outbox.pop(4.0) is not None
    (rest,) = drain(outbox, now=100.0)
    assert rest.kind is OutgoingKind.RESULT


def test_a_lossless_result_is_never_late() -> None:
    outbox = an_outbox()
    outbox.put(3, a_result(1, deadline=5.0))
    (result,) = drain(outbox, now=100.0)
    assert result.kind is OutgoingKind.RESULT


def test_waiting_drops_of_one_reason_merge() -> None:
    outbox = an_outbox()
    for seq in (1, 2, 3):
        outbox.put(1, a_drop(seq))
    outbox.put(1, a_drop(4, DropReason.DEADLINE))
    first, second = drain(outbox)
    assert (as_json(first)["from"], as_json(first)["to"], as_json(first)["count"]) == (1, 3, 3)
    assert as_json(second)["reason"] == "deadline"


def test_drops_do_not_merge_over_a_frame_that_is_answered_otherwise() -> None:
    outbox = an_outbox()
    outbox.put(1, a_drop(1))
    outbox.put(1, a_drop(3))
    assert [as_json(o)["count"] for o in drain(outbox)] == [1, 1]


def test_a_range_counts_frames_not_sequence_numbers() -> None:
    outbox = an_outbox()
    outbox.put(1, a_drop(1))
    gap = DropRange(
        reason=DropReason.SUPERSEDED,
        first_seq=100,
        last_seq=100,
        first_ordinal=2,
        last_ordinal=2,
        credit_bytes=0,
    )
    outbox.put(1, gap)
    (drop,) = drain(outbox)
    assert (as_json(drop)["to"], as_json(drop)["count"]) == (100, 2)


def test_over_budget_the_oldest_results_of_the_biggest_stream_are_late() -> None:
    outbox = an_outbox(max_bytes=2000)
    settled: list[tuple[int, int, DropReason | None]] = []
    outbox.on_settled = lambda *args: settled.append(args)
    outbox.put(2, a_result(1, size=300))
    for seq in range(1, 7):
        outbox.put(1, a_result(seq, size=500))
        outbox.check_integrity()
        assert outbox.size_bytes <= 2000
    assert settled == [(1, seq, DropReason.LATE) for seq in (1, 2, 3)]
    (of_other_stream,) = [o for o in drain(outbox) if o.stream == 2]
    assert of_other_stream.kind is OutgoingKind.RESULT


def test_one_answer_is_let_in_however_large() -> None:
    outbox = an_outbox(max_bytes=1000)
    outbox.put(1, a_result(1, size=1 << 16))
    (result,) = drain(outbox)
    assert result.kind is OutgoingKind.RESULT


def test_lossless_results_are_kept_until_even_that_is_too_much() -> None:
    outbox = an_outbox(max_bytes=1000)
    for seq in range(KEPT_FACTOR):
        outbox.put(3, a_result(seq, size=1000))
    with pytest.raises(OutboxFull):
        outbox.put(3, a_result(99, size=1000))


def test_droppable_results_make_room_for_lossless_ones() -> None:
    outbox = an_outbox(max_bytes=1000)
    outbox.put(1, a_result(1, size=800))
    outbox.put(3, a_result(1, size=800))
    kinds = {o.stream: o.kind for o in drain(outbox)}
    assert kinds == {1: OutgoingKind.DROP, 3: OutgoingKind.RESULT}


def a_newest_outbox(num_results: int) -> tuple[Outbox, list[tuple[int, int, DropReason | None]]]:
    """Stream 1 keeps the newest; one result is ready every 33 ms, the first at 0."""
    outbox = Outbox(max_bytes=1 << 20)
    outbox.open_stream(1, weight=1.0, keep=Keep.NEWEST)
    settled: list[tuple[int, int, DropReason | None]] = []
    outbox.on_settled = lambda *args: settled.append(args)
    for seq in range(num_results):
        outbox.put(1, a_result(seq, ready_at=seq * 0.033))
    return outbox, settled


def test_a_reader_that_lags_gets_the_newest_result_and_one_drop_for_the_others() -> None:
    outbox, settled = a_newest_outbox(4)
    drop, result = drain(outbox, now=0.1)
    assert as_json(drop)["reason"] == "superseded"
    assert (as_json(drop)["from"], as_json(drop)["to"], drop.num_frames) == (0, 2, 3)
    assert (drop.credit_bytes, result.seq) == (3000, 3)
    superseded = [(1, seq, DropReason.SUPERSEDED) for seq in (0, 1, 2)]
    assert settled == [*superseded, (1, 3, None)]


def test_the_newest_result_leaves_however_long_it_waited() -> None:
    outbox, _ = a_newest_outbox(1)
    assert [o.kind for o in drain(outbox, now=100.0)] == [OutgoingKind.RESULT]


def test_a_large_result_waits_for_its_reader_while_others_pass_and_newer_ones_replace_it() -> None:
    outbox, _ = a_newest_outbox(0)
    outbox.open_stream(2, weight=1.0, keep=Keep.TIMELY)
    outbox.may_begin = lambda now: now >= 0.1
    outbox.put(1, a_result(0, size=2 * LARGE_BYTES))
    outbox.put(2, a_result(7, size=2 * LARGE_BYTES))
    assert [o.seq for o in drain(outbox, now=0.0)] == [7]
    outbox.put(1, a_result(1, size=2 * LARGE_BYTES, ready_at=0.033))
    outbox.check_integrity()
    drop, *rest = drain(outbox, now=0.05)
    assert (drop.kind, drop.seq, rest) == (OutgoingKind.DROP, 0, [])
    assert [o.seq for o in drain(outbox, now=0.1)] == [1]


def test_nobody_asks_whether_a_small_result_may_begin() -> None:
    outbox, _ = a_newest_outbox(1)
    outbox.may_begin = lambda now: False
    assert [o.seq for o in drain(outbox)] == [0]


def test_results_that_come_at_once_are_no_lag() -> None:
    outbox = Outbox(max_bytes=1 << 20)
    outbox.open_stream(1, weight=1.0, keep=Keep.NEWEST)
    for seq in range(8):
        outbox.put(1, a_result(seq, ready_at=5.0))
    assert [o.seq for o in drain(outbox, now=5.005)] == list(range(8))


def test_a_result_once_begun_is_not_superseded() -> None:
    outbox, settled = a_newest_outbox(0)
    outbox.put(1, a_result(0, pieces=(10, 10)))
    assert outbox.pop(0.0) is not None
    outbox.put(1, a_result(1, ready_at=0.033))
    kinds = [o.kind for o in drain(outbox, now=5.0)]
    assert kinds == [OutgoingKind.ATTACHMENT, OutgoingKind.RESULT, OutgoingKind.RESULT]
    assert settled == [(1, 0, None), (1, 1, None)]


def test_a_drop_of_the_engine_between_two_results_keeps_its_own_reason() -> None:
    outbox, _ = a_newest_outbox(1)
    outbox.put(1, a_drop(1, DropReason.DEADLINE))
    outbox.put(1, a_result(2, ready_at=0.05))
    told = [as_json(o)["reason"] for o in drain(outbox, now=1.0) if o.kind is OutgoingKind.DROP]
    assert told == ["superseded", "deadline"]


def test_over_the_process_budget_the_outbox_with_most_gives_up_its_results() -> None:
    budget = OutputBudget(10_000)
    large, small = (Outbox(max_bytes=1 << 20, budget=budget) for _ in range(2))
    for outbox in (large, small):
        outbox.open_stream(1, weight=1.0, keep=Keep.TIMELY)
    for seq in range(9):
        large.put(1, a_result(seq, size=1000))
    small.put(1, a_result(0, size=2000))
    (drop,) = drain(large)
    assert (as_json(drop)["reason"], drop.num_frames) == ("late", 9)
    assert [o.kind for o in drain(small)] == [OutgoingKind.RESULT]
    assert budget.meter.used == 0
    assert budget.num_relieved == 1


def test_over_the_process_budget_what_must_be_kept_costs_its_connection() -> None:
    budget = OutputBudget(10_000)
    large, small = (Outbox(max_bytes=1 << 20, budget=budget) for _ in range(2))
    lost: list[str] = []
    large.on_overflow = lambda: lost.append("large")
    small.on_overflow = lambda: lost.append("small")
    for outbox in (large, small):
        outbox.open_stream(3, weight=1.0, keep=Keep.ALL)
    for seq in range(9):
        large.put(3, a_result(seq, size=1000))
    small.put(3, a_result(0, size=2000))
    assert lost == ["large"]
    assert budget.meter.used == 2000
    large.put(3, a_result(9, size=1000))  # until its session has heard of it
    assert lost == ["large"]
    large.clear()
    small.clear()
    assert budget.meter.used == 0


def test_control_messages_are_bounded() -> None:
    outbox = Outbox(max_bytes=1 << 20, max_control=2)
    outbox.put_control(GoAway(deadline_ms=1))
    outbox.put_control(GoAway(deadline_ms=1))
    with pytest.raises(OutboxFull):
        outbox.put_control(GoAway(deadline_ms=1))


def test_a_stream_is_forgotten_with_its_closed() -> None:
    outbox = an_outbox()
    outbox.put(1, a_result(1))
    outbox.put(1, closed(1))
    outbox.put_control(Credit(stream=1, max_frames=9, max_bytes=9))
    assert [o.kind for o in drain(outbox)][-1] is OutgoingKind.CLOSED
    outbox.put_control(Credit(stream=1, max_frames=10, max_bytes=10))
    assert outbox.pop(0.0) is None
    outbox.open_stream(1, weight=1.0, keep=Keep.TIMELY)


def test_a_grant_that_waits_is_forgotten_with_its_stream() -> None:
    outbox = an_outbox()
    outbox.put(1, a_result(1, pieces=(10,)))
    outbox.on_popped = lambda outgoing: (
        outbox.put_control(Credit(stream=1, max_frames=9, max_bytes=9))
        if outgoing.kind is OutgoingKind.RESULT
        else None
    )
    outbox.put(1, closed(1))
    kinds = [o.kind for o in drain(outbox)]
    assert kinds.count(OutgoingKind.CONTROL) == 1
    assert outbox.is_empty


def test_settling_may_put_more_into_the_same_stream() -> None:
    outbox = an_outbox()
    outbox.on_settled = lambda stream, seq, reason: outbox.put(stream, closed(stream))
    outbox.put(1, a_result(1))
    assert [o.kind for o in drain(outbox)] == [OutgoingKind.RESULT, OutgoingKind.CLOSED]


def test_every_put_wakes_the_writer() -> None:
    outbox = an_outbox()
    woken: list[None] = []
    outbox.on_wake = lambda: woken.append(None)
    outbox.put(1, a_result(1))
    outbox.put_control(GoAway(deadline_ms=1))
    assert len(woken) == 2


def test_clearing_leaves_nothing() -> None:
    outbox = an_outbox()
    outbox.put(1, a_result(1, pieces=(10, 10)))
    outbox.put_control(GoAway(deadline_ms=1))
    outbox.pop(0.0)
    outbox.clear()
    outbox.check_integrity()
    assert outbox.pop(0.0) is None
    assert outbox.size_bytes == 0


def test_a_stream_is_opened_once() -> None:
    outbox = an_outbox()
    with pytest.raises(ValueError, match="open"):
        outbox.open_stream(1, weight=1.0, keep=Keep.TIMELY)


# --- what passes by


def with_writer(outbox: Outbox) -> list[Outgoing]:
    """What a writer that always has room has sent at once."""
    sent: list[Outgoing] = []

    def try_send(outgoing: Outgoing) -> bool:
        sent.append(outgoing)
        return True

    outbox.try_send = try_send
    return sent


def wait_control(outbox: Outbox) -> None:
    outbox.put_control(GoAway(deadline_ms=5))


def wait_credit(outbox: Outbox) -> None:
    outbox.put_control(Credit(stream=1, max_frames=9, max_bytes=9))


def wait_event(outbox: Outbox) -> None:
    outbox.put(1, an_event(0))


def wait_other_stream(outbox: Outbox) -> None:
    outbox.put(2, a_result(1))


def wait_half_sent(outbox: Outbox) -> None:
    outbox.put(2, a_result(1, pieces=(10,)))
    outbox.pop(0.0)


WAITS = [wait_control, wait_credit, wait_event, wait_other_stream, wait_half_sent]


@pytest.mark.parametrize("wait", WAITS)
def test_nothing_passes_what_waits_and_all_passes_once_that_has_left(
    wait: Callable[[Outbox], None],
) -> None:
    outbox = an_outbox()
    sent = with_writer(outbox)
    wait(outbox)
    assert not outbox.pass_by(an_event(1))
    assert sent == []
    assert len(drain(outbox)) == 1
    assert outbox.pass_by(an_event(1))
    assert [outgoing.seq for outgoing in sent] == [1]


def test_nothing_passes_a_large_result_that_may_not_begin() -> None:
    outbox, _ = a_newest_outbox(0)
    sent = with_writer(outbox)
    outbox.may_begin = lambda now: False
    outbox.put(1, a_result(0, size=2 * LARGE_BYTES))
    assert outbox.pop(0.0) is None
    assert not outbox.pass_by(an_event(1))
    assert sent == []


def test_without_a_writer_nothing_passes() -> None:
    outbox = an_outbox()
    assert not outbox.pass_by(an_event(0))
    outbox.put(1, an_event(0))
    assert [outgoing.seq for outgoing in drain(outbox)] == [0]


def test_what_passes_leaves_nothing_behind() -> None:
    outbox = an_outbox()
    with_writer(outbox)
    assert outbox.pass_by(an_event(0))
    outbox.check_integrity()
    assert (outbox.is_empty, outbox.size_bytes, outbox.num_waiting(1)) == (True, 0, 0)
    assert outbox.pop(0.0) is None


@pytest.mark.parametrize("wait", [lambda outbox: None, *WAITS])
def test_what_is_refused_changes_nothing(wait: Callable[[Outbox], None]) -> None:
    """The writer has no room either; nobody is woken for what did not come in."""
    outbox, other = an_outbox(), an_outbox()
    wait(outbox)
    wait(other)
    woken: list[None] = []
    outbox.on_wake = lambda: woken.append(None)
    size_bytes, num_waiting = outbox.size_bytes, outbox.num_waiting(1)
    assert not outbox.pass_by(an_event(1))
    outbox.check_integrity()
    assert (outbox.size_bytes, outbox.num_waiting(1), woken) == (size_bytes, num_waiting, [])
    assert drain(outbox) == drain(other)
