"""What a client has missed, told again while its answers go on."""

from __future__ import annotations

from typing import Any

import pytest

from gateway.config_sections import PacingConfig
from gateway.session.replay import GROUP, Replay, kept_bytes
from gateway.session.text_stream import TextStream
from gateway.stream.entries import Outgoing, OutgoingKind
from gateway.stream.leaky_bucket import LeakyBucket
from gateway.wire.codec import encode
from gateway.wire.messages import Prompt, StreamKind, Token
from tests.fakes.scripted_engine import ScriptedLane
from tests.fakes.session_client import SessionClient

pytestmark = pytest.mark.unit

NUM_ANSWERS = 8
BETWEEN_TOKENS_S = 0.02  # of each answer


def asking(**options: Any) -> tuple[SessionClient, ScriptedLane]:
    """A client of one stream with parallel answers."""
    client = SessionClient(**options).hello()
    lane = client.open(1, kind=StreamKind.TOKENS, pace="off")
    for number in range(NUM_ANSWERS):
        client.send(Prompt(stream=1, id=f"p{number}", prompt="x"))
    return client, lane


def speak(client: SessionClient, lane: ScriptedLane, seconds: float) -> list[Token]:
    """Every answer goes on at its rate; returns what the client reads meanwhile."""
    heard: list[Token] = []
    for _ in range(round(seconds / BETWEEN_TOKENS_S)):
        for item_id in lane.items:
            lane.progress(item_id, "x")
        client.loop.advance(BETWEEN_TOKENS_S)
        heard += client.receive_only(Token)
    return heard


def event(seq: int) -> Outgoing:
    token = Token(stream=1, id="p0", seq=seq, text="")
    return Outgoing(kind=OutgoingKind.EVENT, data=encode(token), stream=1, seq=seq)


def replaying(*, num_events: int) -> tuple[SessionClient, Replay]:
    """One group has left, four may wait, and the bucket lets one a second through."""
    client = SessionClient().hello()
    client.open(1, kind=StreamKind.TOKENS, pace="off")
    client.receive()
    (stream,) = client.session._streams
    assert isinstance(stream, TextStream)
    replay = Replay(
        stream,
        map(event, range(num_events)),
        telling=client.session._telling,
        clock=client.clock,
        bucket=LeakyBucket(1.0, 1),
        max_bytes=4 * GROUP * kept_bytes(event(99)),
    )
    replay.start()
    return client, replay


def numbers(client: SessionClient) -> list[int]:
    """Of the events that wait for the socket, which takes them now."""
    return [token.seq for token in client.receive_only(Token)]


def test_a_replay_catches_up_with_eight_answers_that_go_on() -> None:
    # They make 400 events a second, the bucket lets 45 groups of 8 through: 360.
    client, lane = asking(pacing=PacingConfig(websocket="off", burst=100))
    client.connection.lose("reset")
    speak(client, lane, 3.0)
    back = client.come_back((1, -1))
    telling = back.session._telling
    heard = speak(back, lane, 1.0)  # 800 of 1200 at once, then 360 of 400
    assert telling.holding
    heard += speak(back, lane, 0.2)
    assert not telling.holding
    heard += speak(back, lane, 1.0)
    assert [token.seq for token in heard] == list(range(len(heard)))
    assert "".join(token.text for token in heard) == "x" * NUM_ANSWERS * round(5.2 / 0.02)


def test_what_comes_while_the_socket_is_slow_leaves_with_the_next_group() -> None:
    client, replay = replaying(num_events=3 * GROUP)
    for seq in range(3 * GROUP, 4 * GROUP):
        client.loop.advance(1.0)  # nobody takes the first group
        replay.hold(event(seq))
    assert numbers(client) == list(range(GROUP))
    client.loop.advance(1.0)
    assert numbers(client) == list(range(GROUP, 3 * GROUP))
    client.loop.advance(1.0)
    assert numbers(client) == list(range(3 * GROUP, 4 * GROUP))
    assert client.session.is_idle


def test_beyond_its_bound_the_oldest_leave_whatever_the_bucket_says() -> None:
    client, replay = replaying(num_events=4 * GROUP)
    for seq in range(4 * GROUP, 5 * GROUP):
        replay.hold(event(seq))
    assert numbers(client) == list(range(GROUP))
    for seq in range(5 * GROUP, 5 * GROUP + 3):
        replay.hold(event(seq))
    assert numbers(client) == list(range(GROUP, GROUP + 3))
    heard: list[int] = []
    for _ in range(3):
        client.loop.advance(1.0)
        heard += numbers(client)
    assert heard == list(range(GROUP + 3, 5 * GROUP + 3))
