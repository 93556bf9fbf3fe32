"""Random clients, engines and writers on one session, against the rules of the protocol."""

from __future__ import annotations

from collections import Counter
from typing import Any

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from engine.errors import InvalidInput, Overloaded, Unavailable
from engine.types import Attachment, AttachmentKind, Dropped, DropReason, Failed
from gateway.config import LimitsConfig, StreamsConfig
from gateway.stream.entries import Outgoing
from gateway.wire.codec import decode_server
from gateway.wire.messages import (
    Ack,
    Cancel,
    Close,
    Closed,
    Credit,
    Drop,
    EndInput,
    ErrorMessage,
    Opened,
    ResultMessage,
)
from tests.fakes.scripted_engine import ScriptedLane, a_result
from tests.fakes.session_client import SessionClient, jpeg

pytestmark = pytest.mark.property

STREAMS = st.integers(0, 3)  # which of the streams opened so far, counted from the newest


class Book:
    """What the client knows of one stream."""

    def __init__(self, lane: ScriptedLane) -> None:
        self.lane = lane
        self.sent: list[int] = []
        self.answers: dict[int, str] = {}
        self.last_result = -1
        self.max_frames = 0
        self.is_input_over = False
        self.closed: Closed | None = None

    def answer(self, seq: int, kind: str) -> None:
        assert seq in self.sent
        assert seq not in self.answers, f"{seq} was {self.answers.get(seq)}, now {kind}"
        self.answers[seq] = kind


class SessionMachine(RuleBasedStateMachine):
    def __init__(self) -> None:
        super().__init__()
        self.client = SessionClient(
            limits=LimitsConfig(
                max_outbox_bytes=64 * 1024, ping_interval_s=1e6, ack_deadline_s=1e6
            ),
            streams=StreamsConfig(latest_credit=4, fifo_capacity=5, lossless_capacity=6),
        ).hello()
        self.books: dict[int, Book] = {}
        self.unsent: list[Outgoing] = []
        self.is_over = False

    def book(self, back: int) -> tuple[int, Book] | None:
        stream = len(self.books) - 1 - back
        return None if stream not in self.books else (stream, self.books[stream])

    @precondition(lambda self: len(self.books) < 6)
    @rule(
        policy=st.sampled_from(["latest", "fifo", "lossless"]),
        deadline_ms=st.sampled_from([None, 500.0, 3000.0]),
        weight=st.sampled_from([0.5, 1.0, 4.0]),
    )
    def open(self, policy: str, deadline_ms: float | None, weight: float) -> None:
        stream = len(self.books)
        lane = self.client.open(stream, policy=policy, deadline_ms=deadline_ms, weight=weight)
        self.books[stream] = Book(lane)

    @rule(back=STREAMS, gap=st.integers(1, 3), is_sound=st.booleans(), keeps_credit=st.booleans())
    def send_frame(self, back: int, gap: int, is_sound: bool, keeps_credit: bool) -> None:
        found = self.book(back)
        if found is None or found[1].is_input_over:
            return
        stream, book = found
        has_credit = len(book.sent) < book.max_frames
        in_flight = len(book.sent) - len(book.answers)
        if not has_credit and (keeps_credit or in_flight > 6):
            return  # further over, and the connection would be closed
        seq = (book.sent[-1] if book.sent else 0) + gap
        book.sent.append(seq)
        self.client.send_frame(seq, jpeg() if is_sound else b"nonsense", stream=stream)

    @rule(error=st.sampled_from([None, None, Overloaded("full"), Unavailable("down")]))
    def change_engine(self, error: Any) -> None:
        self.client.engine.refusal = error

    @rule(back=STREAMS)
    def begin(self, back: int) -> None:
        found = self.book(back)
        if found is not None:
            found[1].lane.take()

    @rule(
        back=STREAMS,
        index=st.integers(0, 5),
        kind=st.sampled_from(["result", "result", "large", "drop", "error"]),
    )
    def answer(self, back: int, index: int, kind: str) -> None:
        found = self.book(back)
        if found is None or not found[1].lane.items:
            return
        lane = found[1].lane
        seq = list(lane.items)[index % len(lane.items)]
        picture = Attachment(kind=AttachmentKind.ANNOTATED_FRAME, meta=b"{}", payload=bytes(30_000))
        outcomes = {
            "result": a_result(),
            "large": a_result(attachments=[picture]),
            "drop": Dropped(DropReason.DEADLINE),
            "error": Failed(InvalidInput("broken")),
        }
        lane.answer(seq, outcomes[kind])
        lane.emit_again(seq, a_result())

    @rule(back=STREAMS, index=st.integers(0, 5))
    def cancel(self, back: int, index: int) -> None:
        found = self.book(back)
        if found is not None and found[1].sent:
            stream, book = found
            seq = book.sent[-1 - index % len(book.sent)]
            self.client.send(Cancel(stream=stream, seq=seq))

    @rule(back=STREAMS)
    def acknowledge(self, back: int) -> None:
        found = self.book(back)
        if found is not None and found[1].answers:
            self.client.send(Ack(stream=found[0], seq=max(found[1].answers)))

    @rule(back=STREAMS, stops=st.booleans())
    def end(self, back: int, stops: bool) -> None:
        found = self.book(back)
        if found is None or (found[1].is_input_over and not stops):
            return
        stream, book = found
        book.is_input_over = True
        self.client.send(Close(stream=stream) if stops else EndInput(stream=stream))

    @rule(seconds=st.floats(0, 2))
    def wait(self, seconds: float) -> None:
        self.client.loop.advance(seconds)

    @rule()
    def pop(self) -> None:
        outgoing = self.client.take()
        if outgoing is not None:
            self.unsent.append(outgoing)
            self.note(outgoing)

    @rule()
    def write(self) -> None:
        if self.unsent:
            self.client.session.handle_sent(self.unsent.pop(0))

    @rule(times=st.integers(1, 10))
    def pop_and_write(self, times: int) -> None:
        for _ in range(times):
            self.pop()
            self.write()

    def note(self, outgoing: Outgoing) -> None:
        """The client's rules, as it learns of them."""
        if not outgoing.is_text:
            return
        match decode_server(outgoing.data):
            case Opened(stream=stream, credit=credit):
                self.books[stream].max_frames = credit.max_frames
            case Credit(stream=stream, max_frames=max_frames):
                assert max_frames > self.books[stream].max_frames
                self.books[stream].max_frames = max_frames
            case ResultMessage(stream=stream, seq=seq):
                book = self.books[stream]
                assert seq > book.last_result
                book.last_result = seq
                book.answer(seq, "results")
            case Drop(stream=stream, reason=reason, first=first, last=last, count=count):
                book = self.books[stream]
                covered = [seq for seq in book.sent if first <= seq <= last]
                assert len(covered) == count
                for seq in covered:
                    book.answer(seq, "cancelled" if reason == "cancelled" else "dropped")
            case ErrorMessage(stream=int(stream), seq=int(seq), problem=problem):
                is_accepted = problem.type.endswith(("invalid-input", "unavailable"))
                self.books[stream].answer(seq, "errors" if is_accepted else "refused")
            case Closed() as closed:
                self.check_closed(closed)

    def check_closed(self, closed: Closed) -> None:
        book = self.books[closed.stream]
        assert book.closed is None
        book.closed = closed
        told = Counter(book.answers.values())
        assert sorted(book.answers) == book.sent
        for kind in ("results", "dropped", "errors", "cancelled"):
            assert getattr(closed, kind) == told[kind]
        assert closed.accepted == len(book.sent) - told["refused"]

    @invariant()
    def sums_and_budgets_hold(self) -> None:
        client = self.client
        client.registry.check_integrity()
        client.outbox.check_integrity()
        assert client.faults == []
        for stream in client.session._streams:
            tally = stream.tally
            assert tally.in_flight == len(stream.frames)
            assert tally.received == len(self.books[stream.id].sent)
            assert stream.credit.grant.max_frames >= self.books[stream.id].max_frames
            assert len(stream.sequencer) <= len(stream.frames)
            told = Counter(self.books[stream.id].answers.values())
            assert told["results"] <= tally.results
            assert told["dropped"] <= tally.num_dropped
            assert told["refused"] <= tally.refused

    def teardown(self) -> None:
        """Either everybody is patient to the end, or the client leaves."""
        if len(self.books) % 2:
            self.client.session.close("gone")
            totals = self.client.registry.statistics().models.get("fake")
            assert totals is None or totals.in_flight == 0
        else:
            self.finish()
        self.client.registry.check_integrity()
        assert all(book.lane.is_closed for book in self.books.values())
        assert all(not book.lane.items for book in self.books.values())

    def finish(self) -> None:
        for stream, book in self.books.items():
            if not book.is_input_over:
                self.client.send(EndInput(stream=stream))
            for seq in list(book.lane.items):
                book.lane.answer(seq)
        while not self.client.session.is_idle:
            self.pop_and_write(1)
        for book in self.books.values():
            assert book.closed is not None
        assert self.client.session.num_streams == 0


TestSession = SessionMachine.TestCase
TestSession.settings = settings(max_examples=150, stateful_step_count=50)
