"""Connections that break at any moment change nothing of what a client reads."""

from __future__ import annotations

import random
from collections import defaultdict
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gateway.config_sections import LimitsConfig, PacingConfig
from gateway.session.text_stream import TextStream
from gateway.stream.entries import Outgoing, OutgoingKind
from gateway.stream.event_log import EventLog
from gateway.wire.codec import decode_server
from gateway.wire.messages import Ack, Closed, EndInput, EndOutput, Ping, Prompt, StreamKind, Token
from tests.fakes.scripted_engine import ScriptedLane
from tests.fakes.session_client import SessionClient
from tests.fakes.text_engine import finished

pytestmark = pytest.mark.property

NUM_STREAMS = 2


@given(
    steps=st.lists(st.one_of(st.just("append"), st.integers(-1, 40)), max_size=60),
    max_events=st.integers(1, 20),
    asked=st.integers(-2, 45),
)
def test_a_log_tells_everything_that_follows_or_nothing(
    steps: list[str | int], max_events: int, asked: int
) -> None:
    log = EventLog(0, max_events=max_events)
    told: list[int] = []
    acknowledged = -1
    for step in steps:
        if isinstance(step, int):
            log.acknowledge(step)
            acknowledged = max(acknowledged, min(step, len(told) - 1))
        else:
            log.append(Outgoing(kind=OutgoingKind.EVENT, data=b"x", seq=len(told)))
            told.append(len(told))
        log.check_integrity()
    events = log.after(asked)
    oldest = max(acknowledged + 1, len(told) - max_events)
    if events is not None:
        assert [event.seq for event in events] == told[asked + 1 :]
    assert (events is not None) == (oldest <= asked + 1 <= len(told))
    assert log.is_whole == (oldest == acknowledged + 1)


class Reader:
    """What the program at the other end has read, whatever happened to its connections."""

    def __init__(self) -> None:
        self.texts: dict[str, str] = defaultdict(str)
        self.last_seq: dict[int, int] = dict.fromkeys(range(NUM_STREAMS), -1)
        self.ended: list[str] = []
        self.closed: dict[int, Closed | None] = {}  # None: over, without the server's last word

    def is_done(self, stream: int) -> bool:
        return stream in self.closed

    def read(self, message: Any) -> None:
        if isinstance(message, (Token, EndOutput)):
            assert message.seq == self.last_seq[message.stream] + 1  # never a hole or a repeat
            self.last_seq[message.stream] = message.seq
        if isinstance(message, Token):
            self.texts[message.id] += message.text
        elif isinstance(message, EndOutput):
            self.ended.append(message.id)
        elif isinstance(message, Closed):
            self.closed[message.stream] = message


class Walk:
    """One answer per stream, over connections that break."""

    def __init__(self, seed: int) -> None:
        self.random = random.Random(seed)
        limits = LimitsConfig(ping_interval_s=1e6, ack_deadline_s=1e6)
        self.max_written = self.random.choice([6, 60])
        self.pass_share = self.random.choice([0.0, 0.5, 0.9])
        transfer_rate = self.random.choice([10.0, 240.0])  # replays take long, or are quick
        pacing = PacingConfig(websocket="off", transfer_rate=transfer_rate, burst=1)
        self.client = SessionClient(limits=limits, pacing=pacing).hello()
        self.client.outbox.try_send = self.try_send
        self.reader = Reader()
        self.is_cut = False  # nothing arrives any more, and the server does not know
        self.said: dict[str, str] = {}
        self.lanes: dict[str, ScriptedLane] = {}
        for stream in range(NUM_STREAMS):
            pace = self.random.choice(["off", "steady"])
            lane = self.client.open(stream, kind=StreamKind.TOKENS, pace=pace)
            prompt_id = f"p{stream}"
            self.client.send(Prompt(stream=stream, id=prompt_id, prompt="x"))
            self.client.send(EndInput(stream=stream))
            self.lanes[prompt_id], self.said[prompt_id] = lane, ""

    def run(self, num_steps: int) -> None:
        actions = [self.say, self.say, self.write, self.write, self.wait, self.acknowledge]
        for _ in range(num_steps):
            self.random.choice([*actions, self.answer, self.lose])()
            self.check()
        for prompt_id in self.lanes:
            self.answer_to(prompt_id)
        while len(self.reader.closed) < NUM_STREAMS:
            self.wait()
            self.write()
        assert self.reader.texts == {id_: text for id_, text in self.said.items() if text}
        assert sorted(self.reader.ended) == sorted(self.said)
        assert all(closed is None or closed.results == 1 for closed in self.reader.closed.values())
        self.acknowledge(always=True)
        self.client.connection.lose("gone")
        self.client.registry.check_integrity()
        prompts = self.client.registry.statistics().prompts["fake"]
        assert (prompts.accepted, prompts.results, prompts.in_flight) == (2, 2, 0)
        assert len(self.client.registry.tokens) == 0

    def say(self) -> None:
        prompt_id = self.random.choice(list(self.lanes))
        text = self.random.choice(["a", "bc", "é\n"])
        if self.lanes[prompt_id].items:
            self.lanes[prompt_id].progress(1, text)
            self.said[prompt_id] += text

    def answer(self) -> None:
        if self.random.random() < 0.05:
            self.answer_to(self.random.choice(list(self.lanes)))

    def answer_to(self, prompt_id: str) -> None:
        self.lanes[prompt_id].answer(1, finished())

    def wait(self) -> None:
        self.client.loop.advance(self.random.choice([0.01, 0.1]))

    def write(self) -> None:
        """Some messages reach the client, some are lost on the way."""
        for _ in range(self.random.randrange(self.max_written)):
            outgoing = self.client.take()
            if outgoing is None:
                return
            self.reader.read(decode_server(outgoing.data))
            self.client.connection.handle_sent(outgoing)

    def try_send(self, outgoing: Outgoing) -> bool:
        """An event that need not wait reaches the client, or is lost on the way with all others."""
        if self.random.random() >= self.pass_share:
            return False
        if not self.is_cut:
            self.reader.read(decode_server(outgoing.data))
        return True

    def acknowledge(self, *, always: bool = False) -> None:
        for stream, last_seq in self.reader.last_seq.items():
            if last_seq >= 0 and (always or self.random.random() < 0.3):
                self.client.send(Ack(stream=stream, seq=last_seq))

    def lose(self) -> None:
        """What is written from here on is lost; then the client comes back for what it lacks."""
        missing = [
            (stream, last_seq)
            for stream, last_seq in self.reader.last_seq.items()
            if not self.reader.is_done(stream)
        ]
        if not missing:
            return
        self.is_cut = True
        for _ in range(self.random.randrange(4)):
            outgoing = self.client.take()
            if outgoing is not None:
                self.client.connection.handle_sent(outgoing)
        if self.random.random() < 0.7:
            self.client.connection.lose("reset")
        for _ in range(self.random.randrange(8)):
            self.say()
            self.wait()
        between = self.client.come_back(*missing) if self.random.random() < 0.3 else None
        self.client = back = self.client.come_back(*missing)
        if between is not None:  # its welcome got lost, and so does its connection
            between.connection.lose("reset")
        back.outbox.try_send = self.try_send
        self.is_cut = False
        self.client.send(Ping(t=1.0))
        assert back.welcome is not None
        assert isinstance(back.welcome.resumed, list)
        for entry in back.welcome.resumed:
            if not entry.recovered:
                # Only who has acknowledged the end may find nothing: ``closed`` says no more.
                assert f"p{entry.stream}" in self.reader.ended
                self.reader.closed[entry.stream] = None

    def check(self) -> None:
        self.client.registry.check_integrity()
        self.client.outbox.check_integrity()
        for stream in self.client.session._streams:
            assert isinstance(stream, TextStream)
            stream.check_integrity()


@given(seed=st.integers(0, 2**32))
@settings(max_examples=60)
def test_breaks_at_any_moment_change_nothing_of_what_is_read(seed: int) -> None:
    Walk(seed).run(num_steps=120)
