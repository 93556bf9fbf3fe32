"""Credit and receipts of one stream."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.client.ledger import FrameLedger
from gateway.client.statistics import StreamStatistics
from gateway.wire.messages import Closed, CreditGrant

pytestmark = pytest.mark.unit


def opened(max_frames: int = 4, max_bytes: int = 1000, max_in_flight: int = 64) -> FrameLedger:
    ledger = FrameLedger(StreamStatistics(), max_in_flight=max_in_flight)
    ledger.open(CreditGrant(max_frames=max_frames, max_bytes=max_bytes))
    return ledger


def statistics_of(ledger: FrameLedger) -> StreamStatistics:
    return ledger._statistics


def send(ledger: FrameLedger, *seqs: int, size_bytes: int = 10) -> None:
    for seq in seqs:
        ledger.sent(seq, seq * 1_000_000, size_bytes)


def totals(**counts: int) -> Closed:
    zero = {"accepted": 0, "results": 0, "dropped": 0, "errors": 0, "cancelled": 0}
    return Closed(stream=1, **(zero | counts))


def test_credit_is_counted_in_frames_and_in_bytes() -> None:
    ledger = opened(max_frames=2, max_bytes=25)
    send(ledger, 0)
    assert ledger.can_send(15)
    assert not ledger.can_send(16)
    send(ledger, 1)
    assert not ledger.can_send(1)


def test_one_frame_is_always_allowed_when_none_is_in_flight() -> None:
    ledger = opened(max_frames=1, max_bytes=1)
    send(ledger, 0, size_bytes=5000)
    assert not ledger.can_send(1)
    ledger.result(0, 1.0)
    assert ledger.can_send(5000)


def test_limits_only_grow() -> None:
    ledger = opened(max_frames=1)
    send(ledger, 0)
    ledger.grant(3, 1000)
    ledger.grant(2, 500)
    send(ledger, 1)
    assert ledger.can_send(10)
    send(ledger, 2)
    assert not ledger.can_send(10)


def test_frames_in_flight_are_bounded_whatever_the_credit() -> None:
    ledger = opened(max_frames=10**9, max_bytes=10**12, max_in_flight=3)
    send(ledger, 0, 1, 2)
    assert not ledger.can_send(1)


def test_latency_runs_from_capture_to_result() -> None:
    ledger = opened()
    send(ledger, 2)
    assert ledger.result(2, 2.25) == 0.25
    assert statistics_of(ledger).latencies_s.percentile(50) == 0.25


def test_drop_settles_what_is_in_flight_in_its_range() -> None:
    ledger = opened()
    send(ledger, 1, 5, 9, 12)
    ledger.drop("superseded", 4, 9, 2)
    assert ledger.in_flight == 2
    assert statistics_of(ledger).dropped == {"superseded": 2}
    assert statistics_of(ledger).receipts_add_up


def test_drop_of_an_enormous_range_costs_nothing() -> None:
    ledger = opened()
    send(ledger, 1)
    ledger.drop("stale", 0, 2**53 - 1, 1)
    assert ledger.in_flight == 0


def test_reasons_are_bounded() -> None:
    ledger = opened()
    for number in range(100):
        ledger.drop(f"reason {number}", 0, 0, 1)
    assert len(statistics_of(ledger).dropped) == 33
    assert statistics_of(ledger).dropped["other"] == 68


def test_second_receipt_for_a_frame_shows() -> None:
    ledger = opened()
    send(ledger, 0)
    ledger.result(0, 1.0)
    assert statistics_of(ledger).receipts_add_up
    assert ledger.result(0, 1.0) is None
    assert not statistics_of(ledger).receipts_add_up


def test_totals_agree_whichever_errors_the_server_calls_refused() -> None:
    ledger = opened()
    send(ledger, 0, 1, 2)
    ledger.result(0, 1.0)
    ledger.error(1, "urn:clawstream:problem:invalid-picture")
    ledger.error(2, "urn:clawstream:problem:invalid-picture")
    ledger.closed(totals(accepted=2, results=1, errors=1))
    assert statistics_of(ledger).refused == 2
    assert statistics_of(ledger).receipts_add_up


@pytest.mark.parametrize(
    "counts",
    [
        {"accepted": 2, "results": 2},
        {"accepted": 1, "results": 0, "dropped": 1},
        {"accepted": 2, "results": 1},
        {"accepted": 1, "results": 1, "cancelled": 1},
        {"accepted": 0},
    ],
)
def test_totals_that_disagree_show(counts: dict[str, int]) -> None:
    ledger = opened()
    send(ledger, 0)
    ledger.result(0, 1.0)
    ledger.closed(totals(**counts))
    assert not statistics_of(ledger).receipts_add_up


def test_frame_without_receipt_at_the_end_is_unanswered() -> None:
    ledger = opened()
    send(ledger, 0, 1)
    ledger.result(0, 1.0)
    ledger.closed(totals(accepted=1, results=1))
    assert statistics_of(ledger).unanswered == 1
    assert statistics_of(ledger).in_flight == 0
    assert not statistics_of(ledger).receipts_add_up


def test_disconnect_counts_what_is_in_flight_and_totals_start_anew() -> None:
    ledger = opened()
    send(ledger, 0, 1, 2)
    ledger.result(0, 1.0)
    ledger.disconnected()
    ledger.disconnected()
    ledger.open(CreditGrant(max_frames=1, max_bytes=100))
    send(ledger, 3)
    ledger.result(3, 4.0)
    ledger.closed(totals(accepted=1, results=1))
    assert statistics_of(ledger).dropped == {"disconnected": 2}
    assert statistics_of(ledger).receipts_add_up


@given(st.lists(st.sampled_from(["send", "result", "drop", "error", "cancel", "lose"])))
def test_every_frame_sent_is_in_flight_or_answered(steps: list[str]) -> None:
    ledger = opened(max_frames=1000, max_bytes=10**6)
    in_flight: list[int] = []
    for seq, step in enumerate(steps):
        if step == "send":
            send(ledger, seq)
            in_flight.append(seq)
        elif step == "lose":
            ledger.disconnected()
            in_flight.clear()
        elif in_flight:
            first = in_flight.pop(0)
            if step == "result":
                ledger.result(first, 1.0)
            elif step == "error":
                ledger.error(first, "urn:clawstream:problem:internal")
            else:
                ledger.drop("cancelled" if step == "cancel" else "late", first, first, 1)
        counts = statistics_of(ledger)
        assert counts.receipts_add_up
        assert counts.in_flight == len(in_flight) == counts.sent - counts.answered
