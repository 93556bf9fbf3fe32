"""Events that may have to be told again: all that follow, or none."""

from __future__ import annotations

import pytest

from gateway.stream.entries import Outgoing, OutgoingKind
from gateway.stream.event_log import EVENT_BYTES, EventLog

pytestmark = pytest.mark.unit


def event(seq: int, text: bytes = b"x") -> Outgoing:
    return Outgoing(kind=OutgoingKind.EVENT, data=text, stream=7, seq=seq)


def a_log(num_events: int, **bounds: int) -> EventLog:
    log = EventLog(7, **bounds)
    for seq in range(num_events):
        log.append(event(seq))
    return log


def seqs_after(log: EventLog, last_seq: int) -> list[int | None] | None:
    events = log.after(last_seq)
    return None if events is None else [event.seq for event in events]


def test_what_follows_is_told_whole() -> None:
    log = a_log(4)
    assert seqs_after(log, -1) == [0, 1, 2, 3]
    assert seqs_after(log, 1) == [2, 3]
    assert seqs_after(log, 3) == []


def test_what_is_told_again_is_what_was_told() -> None:
    log = EventLog(7)
    told = [event(seq, b"text %d" % seq) for seq in range(5)]
    for each in told:
        log.append(each)
    assert log.after(1) == tuple(told[2:])


def test_an_empty_log_has_nothing_to_tell_to_who_has_nothing() -> None:
    assert EventLog(7).after(-1) == ()
    assert EventLog(7).after(0) is None


def test_who_claims_more_than_was_told_gets_nothing() -> None:
    assert a_log(4).after(4) is None


def test_acknowledged_events_are_forgotten() -> None:
    log = a_log(4)
    log.acknowledge(1)
    log.acknowledge(0)
    assert (log.first_seq, log.next_seq, len(log)) == (2, 4, 2)
    assert seqs_after(log, 1) == [2, 3]
    assert log.after(0) is None
    assert log.is_whole


def test_an_acknowledgement_of_the_future_covers_what_there_is() -> None:
    log = a_log(2)
    log.acknowledge(99)
    assert (len(log), log.size_bytes) == (0, 0)
    log.append(event(2))
    assert len(log) == 1


def test_over_its_bounds_the_oldest_are_forgotten_and_recovery_is_off() -> None:
    log = a_log(5, max_events=3)
    assert not log.is_whole
    assert log.after(-1) is None
    assert seqs_after(log, 1) == [2, 3, 4]
    log.acknowledge(3)
    assert log.is_whole


def test_bytes_are_bounded() -> None:
    log = EventLog(7, max_bytes=2 * EVENT_BYTES + 11)
    assert log.append(event(0, b"12345")) == EVENT_BYTES + 5
    assert log.append(event(1, b"12345")) == EVENT_BYTES + 5
    assert log.append(event(2, b"123456")) == 1
    assert log.first_seq == 1
    log.check_integrity()


def test_numbers_have_no_gaps() -> None:
    log = a_log(2)
    with pytest.raises(ValueError, match="cannot follow 1"):
        log.append(event(3))
    assert seqs_after(log, -1) == [0, 1]
