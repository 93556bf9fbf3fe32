"""Random traffic through an outbox: budgets hold, order holds, each result is decided once."""

from __future__ import annotations

import msgspec
import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from engine.types import DropReason
from gateway.stream.entries import DropRange, Keep, Outgoing, OutgoingKind, ResultGroup
from gateway.stream.outbox import KEPT_FACTOR, Outbox, OutboxFull
from gateway.wire.messages import Credit

pytestmark = pytest.mark.property

MAX_BYTES = 4000
NEWEST, LOSSLESS = 2, 3
KEEP = {1: Keep.TIMELY, NEWEST: Keep.NEWEST, LOSSLESS: Keep.ALL}
STREAMS = st.sampled_from(list(KEEP))


class OutboxMachine(RuleBasedStateMachine):
    def __init__(self) -> None:
        super().__init__()
        self.outbox = Outbox(max_bytes=MAX_BYTES)
        self.outbox.on_settled = self.settle
        for stream, keep in KEEP.items():
            self.outbox.open_stream(stream, weight=float(stream), keep=keep)
        self.now = 0.0
        self.next_seq = dict.fromkeys(KEEP, 0)
        self.undecided: set[tuple[int, int]] = set()
        self.delivered: set[tuple[int, int]] = set()
        self.undelivered: set[tuple[int, int]] = set()  # settled as late or superseded
        self.told: set[tuple[int, int]] = set()
        self.last_result = dict.fromkeys(KEEP, -1)
        self.begun: dict[int, int] = {}  # stream -> seq of the group under way
        self.is_failed = False

    def settle(self, stream: int, seq: int, reason: DropReason | None) -> None:
        self.undecided.remove((stream, seq))
        (self.delivered if reason is None else self.undelivered).add((stream, seq))
        assert reason is None or KEEP[stream] is not Keep.ALL
        assert reason is not DropReason.SUPERSEDED or KEEP[stream] is Keep.NEWEST

    @precondition(lambda self: not self.is_failed)
    @rule(
        stream=STREAMS,
        size=st.integers(50, 3000),
        pieces=st.lists(st.integers(1, 1500), max_size=3),
        lifetime=st.none() | st.floats(0, 3),
    )
    def put_result(self, stream: int, size: int, pieces: list[int], lifetime: float | None) -> None:
        seq = self.next_seq[stream]
        self.next_seq[stream] += 1
        self.undecided.add((stream, seq))
        group = ResultGroup(
            seq=seq,
            ordinal=seq,
            ready_at=self.now,
            deadline=None if lifetime is None else self.now + lifetime,
            credit_bytes=1,
            pieces=tuple(bytes(n) for n in pieces),
            text=bytes(size),
        )
        self.put(stream, group)

    @precondition(lambda self: not self.is_failed)
    @rule(stream=STREAMS, reason=st.sampled_from([DropReason.SUPERSEDED, DropReason.DEADLINE]))
    def put_drop(self, stream: int, reason: DropReason) -> None:
        seq = self.next_seq[stream]
        self.next_seq[stream] += 1
        self.undelivered.add((stream, seq))
        drop = DropRange(
            reason=reason,
            first_seq=seq,
            last_seq=seq,
            first_ordinal=seq,
            last_ordinal=seq,
            credit_bytes=1,
        )
        self.put(stream, drop)

    def put(self, stream: int, entry: ResultGroup | DropRange) -> None:
        try:
            self.outbox.put(stream, entry)
        except OutboxFull:
            self.is_failed = True  # the connection would be closed now

    @rule(stream=STREAMS)
    def put_credit(self, stream: int) -> None:
        self.outbox.put_control(Credit(stream=stream, max_frames=1, max_bytes=1))

    @rule(elapsed=st.floats(0, 2))
    def pop(self, elapsed: float) -> None:
        self.now += elapsed
        was_empty = self.outbox.is_empty
        outgoing = self.outbox.pop(self.now)
        assert (outgoing is None) == was_empty
        if outgoing is not None:
            self.check(outgoing)

    def check(self, outgoing: Outgoing) -> None:
        stream, seq = outgoing.stream, outgoing.seq
        if outgoing.kind is OutgoingKind.CONTROL:
            return
        assert stream is not None
        assert seq is not None
        assert self.begun.get(stream, seq) == seq
        if outgoing.kind is OutgoingKind.DROP:
            drop = msgspec.json.decode(outgoing.data)
            covered = {(stream, n) for n in range(drop["from"], drop["to"] + 1)}
            assert len(covered) == drop["count"] == outgoing.num_frames == outgoing.credit_bytes
            assert covered <= self.undelivered
            assert not covered & self.told
            self.told |= covered
            return
        assert (stream, seq) in self.delivered
        if outgoing.kind is OutgoingKind.ATTACHMENT:
            self.begun[stream] = seq
            return
        self.begun.pop(stream, None)
        assert seq > self.last_result[stream]
        assert (stream, seq) not in self.told
        self.last_result[stream] = seq
        self.told.add((stream, seq))

    @invariant()
    def budgets_and_sums_hold(self) -> None:
        self.outbox.check_integrity()
        answers = sum(self.next_seq.values()) - len(self.told)
        if not self.is_failed and answers > 1:
            assert self.outbox.size_bytes <= KEPT_FACTOR * MAX_BYTES

    def teardown(self) -> None:
        while (outgoing := self.outbox.pop(self.now)) is not None:
            self.check(outgoing)
        assert not self.undecided
        everything = {(s, seq) for s, count in self.next_seq.items() for seq in range(count)}
        assert self.told == everything


TestOutbox = OutboxMachine.TestCase
TestOutbox.settings = settings(max_examples=60, stateful_step_count=40)
