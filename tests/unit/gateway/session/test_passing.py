"""Events of token streams that leave at once, because nothing waits that they would overtake."""

from __future__ import annotations

from typing import Any

import pytest

from engine.errors import Unavailable
from engine.types import Failed
from gateway.config_sections import LimitsConfig, PacingConfig
from gateway.errors import CloseCode
from gateway.session.pacing import OFF_AHEAD
from gateway.session.receipts import EVENT_CHARS
from gateway.session.replay import GROUP
from gateway.session.text_stream import TextStream
from gateway.wire.messages import (
    Ack,
    Closed,
    EndInput,
    EndOutput,
    Opened,
    Ping,
    Prompt,
    ServerPong,
    StreamKind,
    Token,
)
from tests.fakes.scripted_engine import ScriptedLane
from tests.fakes.session_client import SessionClient
from tests.fakes.text_engine import finished

pytestmark = pytest.mark.unit


class Room:
    """Whether the writer takes any more."""

    is_there = True

    def __call__(self) -> bool:
        return self.is_there


def asking(room: Room | None = None, **options: Any) -> tuple[SessionClient, ScriptedLane]:
    """A client whose prompt ``p`` on stream 1 is under way; nothing waits."""
    client = SessionClient(**options).hello().let_pass(room or Room())
    lane = client.open(1, kind=StreamKind.TOKENS, pace="off")
    client.send(Prompt(stream=1, id="p", prompt="x"))
    (opened,) = client.receive()
    assert isinstance(opened, Opened)
    return client, lane


def say(lane: ScriptedLane, *texts: str, key: int = 1) -> None:
    for text in texts:
        lane.progress(key, text)


def check(client: SessionClient) -> None:
    client.registry.check_integrity()
    client.outbox.check_integrity()
    for stream in client.session._streams:
        assert isinstance(stream, TextStream)
        stream.check_integrity()


def texts(messages: list[Any]) -> str:
    """What was said; checks that no event is missing or out of order."""
    seqs = [message.seq for message in messages if isinstance(message, Token | EndOutput)]
    assert seqs == list(range(seqs[0], seqs[0] + len(seqs))) if seqs else True
    return "".join(message.text for message in messages if isinstance(message, Token))


def test_an_event_that_passes_waits_nowhere_and_is_told_again_when_it_got_lost() -> None:
    client, lane = asking()
    say(lane, "a", "b")
    assert [outgoing.seq for outgoing in client.passed] == [0, 1]
    assert client.outbox.is_empty
    assert client.outbox.num_waiting(1) == 0
    check(client)
    client.connection.lose("reset")
    assert texts(client.come_back((1, -1)).receive()) == "ab"


def test_the_end_passes_like_the_text_before_it_and_closed_follows() -> None:
    client, lane = asking()
    client.send(EndInput(stream=1))
    say(lane, "a")
    lane.answer(1, finished())
    assert len(client.passed) == 2
    told = client.receive()
    assert [type(message) for message in told] == [Token, EndOutput, Closed]
    assert told[-1].results == 1
    check(client)


def test_what_comes_after_an_event_that_waits_waits_too() -> None:
    room = Room()
    client, lane = asking(room)
    say(lane, "a")
    room.is_there = False
    say(lane, "b")
    room.is_there = True
    say(lane, "c")
    assert len(client.passed) == 1
    assert client.outbox.num_waiting(1) == 2
    assert texts(client.receive()) == "abc"
    say(lane, "d")
    assert [outgoing.seq for outgoing in client.passed] == [3]


def test_an_event_follows_what_the_connection_has_to_be_told() -> None:
    client, lane = asking()
    client.send(Ping(t=1.0))
    say(lane, "a")
    assert client.passed == []
    assert [type(message) for message in client.receive()] == [ServerPong, Token]


def test_a_long_text_is_told_in_order_when_only_its_beginning_passes() -> None:
    client, lane = asking()
    client.let_pass(lambda: not client.passed)
    text = "".join(letter * EVENT_CHARS for letter in "abc")
    say(lane, text)
    assert len(client.passed) == 1
    assert client.outbox.num_waiting(1) == 2
    assert texts(client.receive()) == text


def test_events_that_pass_take_no_room_from_those_that_follow() -> None:
    client, lane = asking()
    say(lane, *"x" * 3 * OFF_AHEAD)
    assert len(client.passed) == 3 * OFF_AHEAD
    check(client)


def test_an_answer_without_room_passes_again_once_all_that_waited_was_sent() -> None:
    room = Room()
    client, lane = asking(room)
    room.is_there = False
    said = [f"{number} " for number in range(2 * OFF_AHEAD)]
    say(lane, *said)
    assert client.outbox.num_waiting(1) == OFF_AHEAD  # the rest is held
    room.is_there = True
    assert texts(client.receive()) == "".join(said)
    say(lane, "!")
    assert len(client.passed) == 1
    assert texts(client.receive()) == "!"
    check(client)


def test_an_answer_without_room_goes_on_when_another_of_its_stream_passes() -> None:
    room = Room()
    client, lane = asking(room)
    room.is_there = False
    said = [f"{number} " for number in range(OFF_AHEAD + 2)]
    say(lane, *said)
    while client.take() is not None:
        pass  # the writer has them, and has not said so yet
    room.is_there = True
    client.send(Prompt(stream=1, id="q", prompt="x"))
    say(lane, "q", key=2)
    told = [(message.id, message.text) for message in client.receive()]
    assert told == [("q", "q"), ("p", "".join(said[OFF_AHEAD:]))]
    check(client)


def test_events_that_pass_have_to_be_acknowledged() -> None:
    client, lane = asking(limits=LimitsConfig(ack_deadline_s=1.0, ping_interval_s=1e6))
    say(lane, *"abcdefghijklmnop")
    client.send(Ack(stream=1, seq=15))
    client.loop.advance(2.0)
    assert client.faults == []
    say(lane, *"abcdefghijklmnop")
    client.loop.advance(2.0)
    assert [fault.code for fault in client.faults] == [CloseCode.SLOW_READER]


def test_nothing_passes_to_a_connection_that_is_lost() -> None:
    client, lane = asking()
    client.connection.lose("reset")
    say(lane, "a")
    lane.answer(1, finished())
    assert client.passed == []
    back = client.come_back((1, -1)).let_pass()
    told = back.receive()
    assert texts(told) == "a"
    assert isinstance(told[-1], EndOutput)
    check(back)


def test_nothing_passes_a_replay_that_leaves_by_and_by() -> None:
    client, lane = asking(pacing=PacingConfig(websocket="off", transfer_rate=10.0, burst=1))
    client.connection.lose("reset")
    for _ in range(2 * GROUP):
        say(lane, "x")
        client.loop.advance(0.1)
    back = client.come_back((1, -1)).let_pass()
    heard = back.receive()
    assert texts(heard) == "x" * GROUP
    assert back.outbox.is_empty
    say(lane, "y")
    back.send(Prompt(stream=1, id="malformed"))  # its error does not wait for room
    assert back.passed == []
    assert back.outbox.is_empty
    for _ in range(2):
        back.loop.advance(0.1)
        heard += back.receive()
    assert "".join(m.text for m in heard if isinstance(m, Token)) == "x" * 2 * GROUP + "y"
    assert [message.seq for message in heard] == list(range(2 * GROUP + 2))
    say(lane, "!")
    assert len(back.passed) == 1


def test_an_error_that_ends_an_answer_passes_too() -> None:
    client, lane = asking()
    say(lane, "a")
    lane.answer(1, Failed(Unavailable("down")))
    assert [outgoing.seq for outgoing in client.passed] == [0, 1]
    _, error = client.receive()
    assert error.problem.type.endswith("unavailable")
    check(client)


def test_a_client_that_claims_what_was_never_sent_hears_what_follows() -> None:
    client, lane = asking()
    say(lane, "a")
    client.receive()
    client.connection.lose("reset")
    say(lane, *"bcdefghijklm")  # nobody listens
    back = client.come_back((1, 12))
    assert texts(back.receive()) == ""
    say(lane, "n", "o")
    assert texts(back.receive()) == "no"
    check(back)
