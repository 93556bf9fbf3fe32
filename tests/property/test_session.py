"""Random clients, engines and writers on one session, against the rules of the protocol.

Weighted walks from a seed rather than a rule machine: a machine spends its steps on the first
choices, and what goes wrong here needs long queues in odd states.
"""

from __future__ import annotations

import random
from collections import Counter

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from engine.errors import InvalidInput, Overloaded, Unavailable
from engine.types import Attachment, AttachmentKind, Dropped, DropReason, Failed
from gateway.config_sections import LimitsConfig, StreamsConfig
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


class Walk:
    """One session's life, step by step."""

    def __init__(self, seed: int) -> None:
        self.random = random.Random(seed)
        self.client = SessionClient(
            limits=LimitsConfig(
                max_outbox_bytes=64 * 1024, ping_interval_s=1e6, ack_deadline_s=1e6
            ),
            streams=StreamsConfig(latest_credit=4, fifo_capacity=6, lossless_capacity=5),
        ).hello()
        self.books: dict[int, Book] = {}
        self.unsent: list[Outgoing] = []
        # Some writers hardly get to write, some engines hardly get to answer.
        self.weights = {
            self.open: 0.3,
            self.send_frames: self.random.choice([2.0, 6.0]),
            self.begin: 1.0,
            self.answer: self.random.choice([2.0, 6.0]),
            self.change_engine: 0.3,
            self.cancel: 0.5,
            self.acknowledge: 0.5,
            self.end: 0.2,
            self.wait: 1.0,
            self.pop: 1.0,
            self.write: 1.0,
            self.pop_and_write: self.random.choice([0.3, 2.0]),
        }

    def run(self, num_steps: int) -> None:
        for policy in ("latest", "fifo", "lossless"):
            self.open(policy)
        actions = self.random.choices(
            list(self.weights), weights=list(self.weights.values()), k=num_steps
        )
        for action in actions:
            action()
            self.check_sums_and_budgets()
        if self.random.random() < 0.5:
            self.finish()
        else:
            self.leave()

    def some_book(self) -> tuple[int, Book]:
        return self.random.choice(list(self.books.items()))

    def open(self, policy: str | None = None) -> None:
        if len(self.books) >= 6:
            return
        stream = len(self.books)
        policy = policy or self.random.choice(["latest", "fifo", "lossless"])
        paces = [None] if policy == "lossless" else [None, "playout"]
        lane = self.client.open(
            stream,
            policy=policy,
            pace=self.random.choice(paces),
            deadline_ms=self.random.choice([None, 500.0, 3000.0]),
            weight=self.random.choice([0.5, 1.0, 4.0]),
        )
        self.books[stream] = Book(lane)

    def send_frames(self) -> None:
        stream, book = self.some_book()
        keeps_credit = self.random.random() < 0.9
        for _ in range(self.random.randint(1, 4)):
            has_credit = len(book.sent) < book.max_frames
            in_flight = len(book.sent) - len(book.answers)
            if book.is_input_over or (not has_credit and (keeps_credit or in_flight > 5)):
                return  # further over, and the connection would be closed
            seq = (book.sent[-1] if book.sent else 0) + self.random.choice([1, 1, 1, 3])
            book.sent.append(seq)
            is_sound = self.random.random() < 0.9
            self.client.send_frame(seq, jpeg() if is_sound else b"nonsense", stream=stream)

    def begin(self) -> None:
        self.some_book()[1].lane.take()

    def answer(self) -> None:
        lane = self.some_book()[1].lane
        picture = Attachment(kind=AttachmentKind.ANNOTATED_FRAME, meta=b"{}", payload=bytes(20_000))
        for _ in range(min(self.random.randint(1, 3), len(lane.items))):
            if not lane.items:
                return  # too many results waited for the others
            seq = self.random.choice(list(lane.items))
            outcome = self.random.choice(
                [
                    a_result(),
                    a_result(),
                    a_result(attachments=[picture]),
                    a_result(b'"%s"' % (b"x" * 70_000)),
                    Dropped(DropReason.DEADLINE),
                    Failed(InvalidInput("broken")),
                ]
            )
            lane.answer(seq, outcome)
            lane.emit_again(seq, a_result())

    def change_engine(self) -> None:
        errors = (None, None, None, Overloaded("full"), Unavailable("down"))
        self.client.engine.refusal = self.random.choice(errors)

    def cancel(self) -> None:
        stream, book = self.some_book()
        if book.sent:
            self.client.send(Cancel(stream=stream, seq=self.random.choice(book.sent[-6:])))

    def acknowledge(self) -> None:
        stream, book = self.some_book()
        if book.answers:
            self.client.send(Ack(stream=stream, seq=max(book.answers)))

    def end(self) -> None:
        stream, book = self.some_book()
        stops = self.random.random() < 0.5
        if stops or not book.is_input_over:
            book.is_input_over = True
            self.client.send(Close(stream=stream) if stops else EndInput(stream=stream))

    def wait(self) -> None:
        self.client.loop.advance(self.random.expovariate(5.0))

    def pop(self) -> None:
        outgoing = self.client.take()
        if outgoing is not None:
            self.unsent.append(outgoing)
            self.note(outgoing)

    def write(self) -> None:
        if self.unsent:
            self.client.session.handle_sent(self.unsent.pop(0))

    def pop_and_write(self) -> None:
        for _ in range(self.random.randint(1, 10)):
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
                is_accepted = problem.type.endswith(("-input", "unavailable", "limit-exceeded"))
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

    def check_sums_and_budgets(self) -> None:
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

    def finish(self) -> None:
        """Everybody is patient to the end."""
        for stream, book in self.books.items():
            if not book.is_input_over:
                self.client.send(EndInput(stream=stream))
            for seq in list(book.lane.items):
                book.lane.answer(seq)
        self.client.loop.advance(1.0)  # more than results wait for their playout time
        for _ in range(1000):
            self.pop()
            self.write()
        assert self.client.session.is_idle
        assert all(book.closed is not None for book in self.books.values())
        assert self.client.session.num_streams == 0
        self.check_nothing_is_left()

    def leave(self) -> None:
        """The client is gone, whatever was under way."""
        self.client.session.close("gone")
        assert self.client.registry.input_budget.used == 0
        assert self.client.take() is None
        assert len(self.client.clock) == 0
        self.check_nothing_is_left()

    def check_nothing_is_left(self) -> None:
        self.client.registry.check_integrity()
        assert self.client.registry.statistics().models["fake"].in_flight == 0
        for book in self.books.values():
            assert book.lane.is_closed
            assert not book.lane.items


@given(seed=st.integers(0, 2**32))
@settings(max_examples=40)
def test_every_frame_gets_one_receipt_whatever_happens(seed: int) -> None:
    Walk(seed).run(num_steps=400)
