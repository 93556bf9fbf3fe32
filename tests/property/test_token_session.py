"""Random clients, engines and writers on the token streams of one session.

Weighted walks from a seed, as in ``test_session``: what goes wrong here needs several prompts in
odd states at once.
"""

from __future__ import annotations

import random
from collections import Counter
from dataclasses import dataclass, field
from itertools import cycle

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from engine.errors import InvalidInput, Overloaded, Unavailable
from engine.types import Dropped, DropReason, Failed, Outcome
from gateway.config_sections import LimitsConfig, PacingConfig
from gateway.session.text_stream import TextStream
from gateway.stream.entries import Outgoing
from gateway.wire.codec import decode_server
from gateway.wire.messages import (
    Ack,
    Cancel,
    Close,
    Closed,
    EndInput,
    EndOutput,
    ErrorMessage,
    Prompt,
    StreamKind,
    Token,
)
from tests.fakes.scripted_engine import ScriptedLane
from tests.fakes.session_client import SessionClient
from tests.fakes.text_engine import finished

pytestmark = pytest.mark.property

MAX_PROMPTS = 4
PRIORITIES = ("realtime", "standard", "background")


@dataclass
class Answer:
    """What the client knows of one prompt."""

    last: str | None = None  # its end, as last told
    num_asked: int = 0


@dataclass
class Book:
    """What the client knows of one stream."""

    next_seq: int = 0
    answers: dict[str, Answer] = field(default_factory=dict)
    told: Counter[str] = field(default_factory=Counter)  # receipts, each prompt's first
    is_input_over: bool = False
    closed: Closed | None = None


class Walk:
    """One session's life, step by step."""

    def __init__(self, seed: int) -> None:
        self.random = random.Random(seed)
        limits = LimitsConfig(max_prompts=MAX_PROMPTS, ping_interval_s=1e6, ack_deadline_s=1e6)
        pacing = PacingConfig(
            websocket=self.random.choice(["steady", "off"]),
            limit_streams=self.random.random() < 0.3,
            tenant_fill_rate=self.random.choice([0.0, 30.0]),
            burst=self.random.choice([1, 80]),
        )
        self.client = SessionClient(limits=limits, pacing=pacing).hello()
        self.books: dict[int, Book] = {}
        self.unsent: list[Outgoing] = []
        self.client.outbox.try_send = self.try_send
        self.pass_share = self.random.choice([0.0, 0.5, 0.9, 1.0])
        self.weights = {
            self.open: 0.2,
            self.ask: self.random.choice([2.0, 5.0]),
            self.ask_again: 0.7,
            self.say: self.random.choice([3.0, 9.0]),
            self.answer: 1.5,
            self.change_engine: 0.2,
            self.cancel: 0.5,
            self.acknowledge: 0.5,
            self.end: 0.15,
            self.pop: 2.0,
            self.pass_time: 3.0,
            self.write: 2.0,
            self.catch_up: self.random.choice([0.0, 4.0]),
        }

    def run(self, num_steps: int) -> None:
        self.open()
        weights = list(self.weights.values())
        for action in self.random.choices(list(self.weights), weights=weights, k=num_steps):
            action()
            self.check()
        self.finish() if self.random.random() < 0.5 else self.leave()

    # --- the client

    def open(self) -> None:
        if len(self.books) < 4:
            stream = len(self.books)
            self.client.open(stream, kind=StreamKind.TOKENS)
            self.books[stream] = Book()

    def ask(self) -> None:
        stream, book = self.some_book()
        self.send_prompt(stream, book, f"p{len(book.answers)}")

    def ask_again(self) -> None:
        stream, book = self.some_book()
        if book.answers:
            self.send_prompt(stream, book, self.random.choice(list(book.answers)))

    def send_prompt(self, stream: int, book: Book, prompt_id: str) -> None:
        if book.closed is not None:
            return
        book.answers.setdefault(prompt_id, Answer()).num_asked += 1
        priority = self.random.choice(PRIORITIES)
        self.client.send(Prompt(stream=stream, id=prompt_id, prompt=prompt_id, priority=priority))

    def cancel(self) -> None:
        stream, book = self.some_book()
        if book.answers:
            prompt_id = self.random.choice(list(book.answers))
            self.client.send(Cancel(stream=stream, id=prompt_id))

    def acknowledge(self) -> None:
        stream, book = self.some_book()
        if book.next_seq:
            self.client.send(Ack(stream=stream, seq=book.next_seq - 1))

    def end(self) -> None:
        stream, book = self.some_book()
        stops = self.random.random() < 0.5
        if stops or not book.is_input_over:
            book.is_input_over = True
            self.client.send(Close(stream=stream) if stops else EndInput(stream=stream))

    # --- the engine

    def say(self) -> None:
        lane, key = self.some_item()
        if lane is not None:
            lane.progress(key, self.random.choice(["", "a", "bc", "é\n", "😀"]))

    def answer(self) -> None:
        lane, key = self.some_item()
        if lane is None:
            return
        outcomes: list[Outcome] = [
            finished(),
            finished("length"),
            Dropped(DropReason.DEADLINE),
            Dropped(DropReason.WORKER_LOST),
            Failed(InvalidInput("no")),
            Failed(Unavailable("down")),
        ]
        lane.answer(key, self.random.choice(outcomes))
        lane.emit_again(key, finished())

    def change_engine(self) -> None:
        self.client.engine.refusal = self.random.choice([None, None, None, Overloaded("full")])

    def some_item(self) -> tuple[ScriptedLane | None, int]:
        items = [(lane, key) for lane in self.client.engine.lanes for key in lane.items]
        return self.random.choice(items) if items else (None, 0)

    def some_book(self) -> tuple[int, Book]:
        return self.random.choice(list(self.books.items()))

    def pass_time(self) -> None:
        self.client.loop.advance(self.random.choice([0.001, 0.02, 0.2]))

    # --- the writer

    def pop(self) -> None:
        outgoing = self.client.take()
        if outgoing is not None:
            self.unsent.append(outgoing)
            self.note(outgoing)

    def write(self) -> None:
        if self.unsent:
            self.client.session.handle_sent(self.unsent.pop(0))

    def catch_up(self) -> None:
        """There is room for everything that waits."""
        while self.unsent or not self.client.outbox.is_empty:
            self.write()
            self.pop()

    def try_send(self, outgoing: Outgoing) -> bool:
        """What the writer has in hand it sends first, as every writer does."""
        if self.unsent or self.random.random() >= self.pass_share:
            return False
        self.note(outgoing)
        return True

    def note(self, outgoing: Outgoing) -> None:
        """The client's rules, as it learns of them."""
        message = decode_server(outgoing.data)
        match message:
            case Token(stream=stream, id=prompt_id, text=text):
                answer = self.expect(stream, message.seq, prompt_id)
                assert text
                assert answer.last is None or message.replay is True  # the end comes last
                assert message.replay is not True or answer.num_asked > 1
            case EndOutput(stream=stream, id=prompt_id, finish_reason=reason):
                answer = self.expect(stream, message.seq, prompt_id)
                self.receipt(stream, answer, "cancelled" if reason == "cancelled" else "results")
            case ErrorMessage(stream=int(stream), id=str(prompt_id), problem=problem):
                answer = self.expect(stream, message.seq, prompt_id)
                slug = problem.type.rsplit(":", 1)[-1]
                if slug in ("limit-exceeded", "unexpected-message"):
                    self.books[stream].told["refused"] += 1
                    return
                is_drop = slug == "deadline-exceeded" or problem.detail == "worker_lost"
                self.receipt(stream, answer, "dropped" if is_drop else "errors")
                if message.retryable:  # the id is free: what comes next is another answer
                    answer.last = None
            case Closed() as closed:
                self.check_closed(closed)

    def expect(self, stream: int, seq: object, prompt_id: str) -> Answer:
        """Every event has the stream's next number, and none comes after ``closed``."""
        book = self.books[stream]
        assert book.closed is None
        assert seq == book.next_seq
        book.next_seq += 1
        return book.answers[prompt_id]

    def receipt(self, stream: int, answer: Answer, kind: str) -> None:
        """An answer ends once; again only when its prompt was repeated, and then alike."""
        assert answer.last is None or (answer.num_asked > 1 and answer.last == kind)
        answer.last = kind
        self.books[stream].told[kind] += 1

    # --- rules

    def check_closed(self, closed: Closed) -> None:
        book = self.books[closed.stream]
        assert book.closed is None
        book.closed = closed
        answered = closed.results + closed.dropped + closed.errors + closed.cancelled
        assert closed.accepted == answered
        # Repeats are told again, so more may have been told than counted, never less.
        for kind in ("results", "dropped", "errors", "cancelled"):
            assert getattr(closed, kind) <= book.told[kind]

    def check(self) -> None:
        client = self.client
        client.registry.check_integrity()
        client.outbox.check_integrity()
        assert client.faults == []
        num_running = 0
        for stream in client.session._streams:
            assert isinstance(stream, TextStream)
            stream.check_integrity()
            num_running += len(stream.running)
        assert num_running <= MAX_PROMPTS
        # The rest have their end from the engine, and it follows the text that is still held.
        assert num_running >= sum(len(lane.items) for lane in client.engine.lanes)

    def finish(self) -> None:
        """Everybody is patient to the end."""
        for stream, book in self.books.items():
            if not book.is_input_over:
                self.client.send(EndInput(stream=stream))
        for lane in self.client.engine.lanes:
            for key in list(lane.items):
                lane.answer(key, finished())
        for _ in range(20_000):
            if not self.unsent and self.client.session.is_idle:
                break
            self.pop()
            self.write()
            self.client.loop.advance(0.01)
        assert all(book.closed is not None for book in self.books.values())
        assert self.client.session.num_streams == 0
        self.check_nothing_is_left()

    def leave(self) -> None:
        self.client.session.close("gone")
        assert self.client.take() is None
        self.check_nothing_is_left()

    def check_nothing_is_left(self) -> None:
        self.client.registry.check_integrity()
        assert self.client.registry.statistics().prompts["fake"].in_flight == 0
        for lane in self.client.engine.lanes:
            assert lane.is_closed
            assert not lane.items
        assert self.client.registry.text_of("fake").delivery.num_held == 0


@given(seed=st.integers(0, 2**32))
@settings(max_examples=60)
def test_every_prompt_gets_one_receipt_and_every_event_its_number(seed: int) -> None:
    Walk(seed).run(num_steps=300)


@given(
    texts=st.lists(st.text(max_size=5), max_size=30),
    repeats=st.sets(st.integers(0, 30), max_size=5),
    pace=st.sampled_from(["steady", "off"]),
    wait_s=st.sampled_from([0.0, 0.01, 0.1]),
    rooms=st.lists(st.booleans(), max_size=8),
)
def test_a_client_that_repeats_its_prompt_reads_the_same_text(
    texts: list[str], repeats: set[int], pace: str, wait_s: float, rooms: list[bool]
) -> None:
    has_room = cycle([*rooms, False])
    client = SessionClient().hello().let_pass(lambda: next(has_room))
    lane = client.open(kind=StreamKind.TOKENS, pace=pace)
    prompt = Prompt(stream=1, id="p", prompt="x")
    client.send(prompt)
    for index, text in enumerate(texts):
        if index in repeats:
            client.send(prompt)
        lane.progress(1, text)
        client.loop.advance(wait_s)
    lane.answer(1, finished())
    told = []
    while client.session._streams.num_prompts:
        told += client.receive()
        client.loop.advance(0.05)
    heard = ""
    for message in [*told, *client.receive()]:
        if isinstance(message, Token):
            heard = message.text if message.replay is True else heard + message.text
    assert heard == "".join(texts)
    assert len(lane.offered) == 1
