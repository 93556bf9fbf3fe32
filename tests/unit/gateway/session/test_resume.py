"""A session that loses its connection: what goes on, what is told again, and to whom."""

from __future__ import annotations

from typing import Any

import pytest

from engine.types import Priority
from gateway.config_sections import LimitsConfig, PacingConfig
from gateway.errors import CloseCode
from gateway.session.detached import DetachedSessions
from gateway.session.registry import Receipts, SessionRegistry
from gateway.session.replay import GROUP
from gateway.session.text_stream import TextStream
from gateway.stream.event_log import EVENT_BYTES, EventLog
from gateway.wire.messages import (
    Ack,
    Closed,
    Credit,
    EndInput,
    EndOutput,
    Ping,
    Prompt,
    ResultMessage,
    ResumedStream,
    StreamKind,
    Token,
)
from gateway.wire.protocol import ConnectionState
from tests.fakes.scripted_engine import ScriptedLane
from tests.fakes.session_client import SessionClient
from tests.fakes.text_engine import finished

pytestmark = pytest.mark.unit

WINDOW_S = LimitsConfig().resume_window_s


def asking(**options: Any) -> tuple[SessionClient, ScriptedLane]:
    """A client whose prompt ``p`` on stream 1 is under way and has two tokens."""
    client = SessionClient(**options).hello()
    lane = client.open(1, kind=StreamKind.TOKENS, pace="off")
    client.send(Prompt(stream=1, id="p", prompt="x"))
    lane.progress(1, "a")
    lane.progress(1, "b")
    return client, lane


def texts(messages: list[Any]) -> list[str]:
    return [message.text for message in messages if isinstance(message, Token)]


def recovery(client: SessionClient) -> list[tuple[int, bool]]:
    assert client.welcome is not None
    assert isinstance(client.welcome.resumed, list)
    return [(entry.stream, entry.recovered) for entry in client.welcome.resumed]


def prompts(client: SessionClient) -> Receipts:
    client.registry.check_integrity()
    return client.registry.statistics().prompts["fake"]


# --- what is told again


def test_an_answer_goes_on_while_nobody_listens_and_is_told_whole() -> None:
    client, lane = asking()
    client.receive()
    client.connection.lose("reset")
    lane.progress(1, "c")
    lane.answer(1, finished())
    assert prompts(client).in_flight == 1  # nobody has been told
    back = client.come_back((1, 1))
    assert recovery(back) == [(1, True)]
    messages = back.receive()
    assert [message.seq for message in messages] == [2, 3]
    assert texts(messages) == ["c"]
    assert isinstance(messages[-1], EndOutput)
    assert (prompts(client).results, prompts(client).in_flight) == (1, 0)


def test_what_was_written_and_never_arrived_is_told_again() -> None:
    client, lane = asking()
    client.receive()
    client.connection.lose("reset")
    back = client.come_back((1, -1))
    assert texts(back.receive()) == ["a", "b"]
    lane.progress(1, "c")
    assert texts(back.receive()) == ["c"]


def test_a_long_replay_leaves_as_the_bucket_of_the_socket_allows() -> None:
    client, lane = asking(pacing=PacingConfig(websocket="off", transfer_rate=10.0, burst=3))
    client.receive()
    client.connection.lose("reset")
    for _ in range(40):
        lane.progress(1, "x")
        client.loop.advance(0.1)
    back = client.come_back((1, -1))
    heard = back.receive()
    assert len(texts(heard)) == 3 * GROUP
    lane.progress(1, "y")
    lane.answer(1, finished())
    assert back.receive() == []
    assert not back.session.is_idle
    back.loop.advance(0.1)
    heard += back.receive()
    assert len(texts(heard)) == 4 * GROUP
    for _ in range(10):
        back.loop.advance(0.1)
        heard += back.receive()
    assert [message.seq for message in heard] == list(range(len(heard)))
    assert "".join(texts(heard)) == "ab" + "x" * 40 + "y"
    assert isinstance(heard[-1], EndOutput)


def test_a_replay_waits_for_a_socket_that_is_slower() -> None:
    client, lane = asking(pacing=PacingConfig(websocket="off", transfer_rate=10.0, burst=1))
    client.receive()
    client.connection.lose("reset")
    for _ in range(40):
        lane.progress(1, "x")
        client.loop.advance(0.1)
    back = client.come_back((1, -1))
    for _ in range(20):
        back.loop.advance(0.1)
    assert len(texts(back.receive())) == GROUP
    back.loop.advance(0.1)
    assert len(texts(back.receive())) == GROUP


def test_a_replay_that_is_cut_off_begins_again_on_the_next_connection() -> None:
    client, lane = asking(pacing=PacingConfig(websocket="off", transfer_rate=10.0, burst=1))
    client.receive()
    client.connection.lose("reset")
    for _ in range(20):
        lane.progress(1, "x")
        client.loop.advance(0.1)
    back = client.come_back((1, 0))
    assert len(texts(back.receive())) == GROUP
    back.connection.lose("reset")
    again = back.come_back((1, 0))
    heard = again.receive()
    for _ in range(5):
        again.loop.advance(0.1)
        heard += again.receive()
    assert [message.seq for message in heard] == list(range(1, 1 + len(heard)))
    assert "".join(texts(heard)) == "b" + "x" * 20


def test_what_waited_to_be_written_is_told_once() -> None:
    client, _ = asking()
    client.connection.lose("reset")
    assert client.take() is None
    assert texts(client.come_back((1, -1)).receive()) == ["a", "b"]


def test_the_answer_says_where_both_sides_stand() -> None:
    client, _ = asking()
    client.send(Prompt(stream=1, id="q", prompt="x"))
    client.connection.lose("reset")
    back = client.come_back((1, 0), (7, 5))
    assert back.welcome is not None
    assert back.welcome.session == client.session.id
    assert back.welcome.resumed == [
        ResumedStream(stream=1, recovered=True, next_seq=1, received_seq=1),
        ResumedStream(stream=7, recovered=False, next_seq=0, received_seq=-1),
    ]


@pytest.mark.parametrize("last_seq", [2, 99])
def test_who_claims_events_that_were_never_told_recovers_nothing(last_seq: int) -> None:
    client, lane = asking()
    client.connection.lose("reset")
    back = client.come_back((1, last_seq))
    assert recovery(back) == [(1, False)]
    assert back.receive() == []
    assert not lane.items  # the engine's work is over too
    assert prompts(client).dropped == {"disconnected": 1}


def test_acknowledged_events_are_not_kept() -> None:
    client, lane = asking()
    client.receive()
    client.send(Ack(stream=1, seq=0))
    client.connection.lose("reset")
    assert client.registry.statistics().detached.size_bytes < 2 * EVENT_BYTES
    assert recovery(client.come_back((1, -1))) == [(1, False)]
    assert not lane.items


def test_a_closed_stream_is_told_again_until_its_end_is_acknowledged() -> None:
    client, lane = asking()
    client.send(EndInput(stream=1))
    lane.answer(1, finished())
    assert isinstance(client.receive()[-1], Closed)
    assert client.session.num_streams == 0
    client.connection.lose("reset")
    back = client.come_back((1, 0))
    told = back.receive()
    assert [type(message) for message in told] == [Token, EndOutput, Closed]
    assert told[-1].results == 1
    back.send(Ack(stream=1, seq=2))
    back.connection.lose("reset")
    assert back.session.state is ConnectionState.CLOSED  # nothing to come back for


def test_a_stream_that_ends_meanwhile_has_its_totals_right() -> None:
    client, lane = asking()
    client.send(EndInput(stream=1))
    client.connection.lose("reset")
    lane.answer(1, finished())
    told = client.come_back((1, 1)).receive()
    assert [type(message) for message in told] == [EndOutput, Closed]
    assert (told[-1].accepted, told[-1].results) == (1, 1)


def test_a_repeated_prompt_keeps_its_meaning() -> None:
    client, lane = asking()
    client.connection.lose("reset")
    back = client.come_back((1, -1))
    back.receive()
    back.send(Prompt(stream=1, id="p", prompt="x"))
    (again,) = back.receive()
    assert (again.text, again.replay, again.seq) == ("ab", True, 2)
    assert len(lane.offered) == 1


def test_a_stream_that_is_not_asked_for_is_given_up() -> None:
    client, lane = asking()
    client.open(2, kind=StreamKind.TOKENS, pace="off")
    client.connection.lose("reset")
    assert recovery(client.come_back((2, -1))) == [(2, True)]
    assert lane.is_closed
    assert prompts(client).dropped == {"disconnected": 1}


# --- frames


def test_frames_that_are_unanswered_count_as_disconnected_and_video_goes_on() -> None:
    client = SessionClient().hello()
    lane = client.open(1, policy="fifo")
    client.send_frame(4)
    client.send_frame(5)
    lane.answer(4)
    client.connection.lose("reset")
    assert not lane.items
    lane.answer(5)
    statistics = client.registry.statistics()
    assert statistics.models["fake"].dropped == {"disconnected": 2}
    assert statistics.input_bytes == 0
    back = client.come_back((1, 3))
    assert back.welcome is not None
    assert back.welcome.resumed == [
        ResumedStream(stream=1, recovered=True, next_seq=6, received_seq=5)
    ]
    (credit,) = back.receive()
    assert isinstance(credit, Credit)
    assert credit.max_frames == 4  # counted anew
    back.send_frame(6)
    lane.answer(6)
    (result,) = back.receive()
    assert isinstance(result, ResultMessage)
    assert result.seq == 6
    back.send(EndInput(stream=1))
    (closed,) = back.receive()
    assert (closed.accepted, closed.results, closed.dropped) == (3, 1, 2)
    client.registry.check_integrity()


def test_a_stream_of_frames_without_more_input_is_over() -> None:
    client = SessionClient().hello()
    lane = client.open(1)
    client.send_frame(1)
    client.send(EndInput(stream=1))
    client.connection.lose("reset")
    assert lane.is_closed
    assert client.session.state is ConnectionState.CLOSED


# --- who may


@pytest.mark.parametrize("token", ["", "wrong", "00000000.wrong"])
def test_a_wrong_token_finds_nothing_and_harms_nobody(token: str) -> None:
    client, _ = asking()
    client.connection.lose("reset")
    stranger = client.come_back((1, 1), token=token)
    assert recovery(stranger) == [(1, False)]
    assert stranger.session is not client.session
    assert recovery(client.come_back((1, 1))) == [(1, True)]


def test_another_principal_finds_nothing() -> None:
    client, _ = asking()
    client.connection.lose("reset")
    assert recovery(client.come_back((1, 1), principal="other")) == [(1, False)]
    assert recovery(client.come_back((1, 1))) == [(1, True)]


def test_the_answer_does_not_tell_whether_there_is_such_a_session() -> None:
    client, _ = asking()
    client.connection.lose("reset")
    stranger = client.come_back((1, 1), token="wrong").welcome
    assert client.welcome is not None
    client.session.close("over")
    nobody = client.come_back((1, 1)).welcome
    assert stranger is not None
    assert nobody is not None
    assert stranger.resumed == nobody.resumed


def test_a_token_is_good_once() -> None:
    client, _ = asking()
    client.connection.lose("reset")
    back = client.come_back((1, 1))
    back.send(Ping(t=1.0))  # it has its new token
    assert recovery(client.come_back((1, 1))) == [(1, False)]
    back.connection.lose("reset")
    assert recovery(back.come_back((1, 1))) == [(1, True)]


def test_a_welcome_that_never_arrived_can_be_asked_for_again() -> None:
    client, _ = asking()
    client.connection.lose("reset")
    client.come_back((1, 1)).connection.lose("reset")
    assert recovery(client.come_back((1, 1))) == [(1, True)]


def test_a_connection_that_nobody_knew_to_be_lost_is_fenced() -> None:
    client, lane = asking()
    back = client.come_back((1, -1))
    assert [fault.code for fault in client.faults] == [CloseCode.SUPERSEDED]
    assert texts(back.receive()) == ["a", "b"]
    # Whatever the old connection still does, the session does not feel it.
    client.connection.receive_text(b"nonsense")
    client.connection.lose("code 4510")
    client.connection.close("code 4510")
    lane.progress(1, "c")
    assert client.take() is None
    assert texts(back.receive()) == ["c"]
    assert (back.session.state, back.faults) == (ConnectionState.READY, [])


# --- how long


def test_who_comes_too_late_recovers_nothing() -> None:
    client, lane = asking()
    client.connection.lose("reset")
    client.loop.advance(WINDOW_S - 0.1)
    assert lane.items
    client.loop.advance(0.2)
    assert not lane.items
    assert prompts(client).dropped == {"disconnected": 1}
    statistics = client.registry.statistics()
    assert (statistics.detached.expired, statistics.detached.detached) == (1, 0)
    assert (len(client.registry), len(client.registry.tokens)) == (0, 0)
    assert recovery(client.come_back((1, 1))) == [(1, False)]


def test_an_answer_that_was_finished_and_never_fetched_counts_as_disconnected() -> None:
    client, lane = asking()
    client.connection.lose("reset")
    lane.answer(1, finished())
    client.loop.advance(WINDOW_S)
    assert (prompts(client).results, prompts(client).dropped) == (0, {"disconnected": 1})


def test_after_a_resume_the_window_is_over() -> None:
    client, _ = asking()
    client.connection.lose("reset")
    back = client.come_back((1, 1))
    back.receive()
    back.session._watch.stop()  # or the silence would end the connection
    client.loop.advance(2 * WINDOW_S)
    assert back.session.state is ConnectionState.READY
    assert client.registry.statistics().detached.resumed == 1


def test_without_a_window_nothing_waits() -> None:
    client, lane = asking(limits=LimitsConfig(resume_window_s=0))
    client.connection.lose("reset")
    assert client.session.state is ConnectionState.CLOSED
    assert not lane.items


@pytest.mark.parametrize("is_draining", [False, True])
def test_who_says_goodbye_or_was_told_to_go_is_not_waited_for(is_draining: bool) -> None:
    client, lane = asking()
    if is_draining:
        client.session.drain(1000)
        client.connection.lose("reset")
    else:
        client.connection.close("code 1000")
    assert client.session.state is ConnectionState.CLOSED
    assert not lane.items
    assert recovery(client.come_back((1, 1))) == [(1, False)]


def test_the_end_of_the_process_gives_everybody_up() -> None:
    client, lane = asking()
    other, _ = asking(registry=client.registry, loop=client.loop)
    client.connection.lose("reset")
    client.registry.detached.end_all()
    assert not lane.items
    other.connection.lose("reset")
    assert other.session.state is ConnectionState.CLOSED


# --- how much


def test_sessions_that_wait_take_nobodys_place() -> None:
    client, _ = asking(registry=SessionRegistry(1))
    client.connection.lose("reset")
    back = client.come_back((1, 1))
    assert recovery(back) == [(1, True)]
    assert len(client.registry) == 1


def test_too_many_sessions_give_up_the_oldest() -> None:
    registry = SessionRegistry(8, detached=DetachedSessions(max_sessions=1))
    first, _ = asking(registry=registry)
    second, _ = asking(registry=registry, loop=first.loop)
    first.connection.lose("reset")
    second.connection.lose("reset")
    assert first.session.state is ConnectionState.CLOSED
    assert second.session.state is ConnectionState.DETACHED
    assert prompts(first).dropped == {"disconnected": 1}


def test_too_many_bytes_give_up_the_oldest_in_the_middle_of_its_own_answer() -> None:
    registry = SessionRegistry(8, detached=DetachedSessions(max_bytes=5 * EVENT_BYTES))
    client, lane = asking(registry=registry)
    client.connection.lose("reset")
    for _ in range(5):
        lane.progress(1, "x" * 50)
    client.loop.advance(0.01)
    assert client.session.state is ConnectionState.CLOSED
    assert registry.statistics().detached.given_up == 1
    prompts(client)


def test_an_answer_too_long_to_be_kept_is_not_made_to_its_end(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    bounds = {"max_events": 4, "max_bytes": 10_000}
    monkeypatch.setattr(EventLog.__init__, "__kwdefaults__", bounds)
    client, lane = asking()
    client.connection.lose("reset")
    for _ in range(3):
        lane.progress(1, "x")
    client.loop.advance(0.01)
    assert not lane.items
    assert prompts(client).dropped == {"disconnected": 1}
    assert client.registry.statistics().detached.size_bytes == 0
    assert recovery(client.come_back((1, 1))) == [(1, False)]


def test_a_slow_reader_that_comes_back_is_not_stalled_at_once() -> None:
    client, lane = asking(limits=LimitsConfig(ack_deadline_s=2.0, ping_interval_s=100.0))
    for _ in range(20):
        lane.progress(1, "x")
        client.receive()
    client.loop.advance(3.0)
    assert [fault.code for fault in client.faults] == [CloseCode.SLOW_READER]
    client.connection.lose("code 4008")
    back = client.come_back((1, 21))
    client.loop.advance(1.0)
    assert back.faults == []


def test_streams_keep_their_lanes_and_the_session_its_integrity() -> None:
    client, lane = asking()
    assert lane.spec.priority is Priority.STANDARD
    for _ in range(3):
        client.connection.lose("reset")
        client = client.come_back((1, 1))
        for stream in client.session._streams:
            assert isinstance(stream, TextStream)
            stream.check_integrity()
        client.outbox.check_integrity()
    client.registry.check_integrity()
    assert not lane.is_closed
