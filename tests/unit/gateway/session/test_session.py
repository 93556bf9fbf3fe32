"""The conversation: hello, open, liveness, drain, close."""

from __future__ import annotations

import pytest
from msgspec import UNSET

from gateway.config_sections import LimitsConfig
from gateway.errors import CloseCode, ConnectionFault, RequestProblem
from gateway.session.registry import SessionRegistry
from gateway.stream.credit_pool import CreditPools
from gateway.wire.messages import (
    Ack,
    Cancel,
    ClientPong,
    Close,
    Closed,
    Credit,
    Drop,
    EndInput,
    ErrorMessage,
    GoAway,
    Hello,
    Open,
    Opened,
    Ping,
    Prompt,
    ResultMessage,
    ResumeRequest,
    ResumeStream,
    ServerPong,
    StreamKind,
    StreamOptions,
    Welcome,
)
from tests.fakes.session_client import SessionClient, jpeg

pytestmark = pytest.mark.unit


def problems(client: SessionClient) -> list[str]:
    errors = client.receive_only(ErrorMessage)
    return [error.problem.type.rsplit(":", 1)[-1] for error in errors]


def test_the_session_of_the_document_goes_as_it_says() -> None:
    client = SessionClient()
    client.send(Hello(token="…"))
    lane = client.open()
    client.receive()
    for seq in range(4):
        client.send_frame(seq, jpeg(padding=40_000 - len(jpeg())))
        lane.answer(seq)
        *results, last = client.receive()
        assert isinstance((results or [last])[0], ResultMessage)
    assert last == Credit(stream=1, max_frames=12, max_bytes=8_548_608)
    client.send(Ack(stream=1, seq=3))
    client.send(EndInput(stream=1))
    (closed,) = client.receive()
    assert (closed.accepted, closed.results, closed.dropped) == (4, 4, 0)


# --- hello


def test_hello_is_answered_with_limits_models_and_the_time() -> None:
    client = SessionClient()
    client.send(Hello())
    (welcome,) = client.receive()
    assert isinstance(welcome, Welcome)
    assert welcome.session == client.session.id
    assert welcome.epoch == client.registry.epoch
    assert welcome.models == ["fake"]
    assert welcome.limits.max_streams == 64
    assert welcome.limits.max_messages_per_s == 4000.0
    assert welcome.now_us == int(client.loop.time() * 1e6)
    assert welcome.resume_window_s == 30.0
    assert welcome.resumed is UNSET


def test_a_key_in_hello_is_enough() -> None:
    client = SessionClient(principal=None)
    client.send(Hello(token="secret"))
    assert client.session.principal == "key-1"


@pytest.mark.parametrize(
    ("token", "detail"),
    [(None, "there is none"), ("", "there is none"), ("wrong", "the key is not valid")],
)
def test_without_a_valid_key_the_connection_ends(token: str | None, detail: str) -> None:
    client = SessionClient(principal=None)
    with pytest.raises(ConnectionFault) as fault:
        client.send(Hello(token=token))
    assert (fault.value.code, fault.value.detail) == (CloseCode.AUTH, detail)


def test_what_is_not_there_is_not_recovered() -> None:
    client = SessionClient()
    streams = [ResumeStream(stream=4, last_seq=17)]
    client.send(Hello(resume=ResumeRequest(session="s", token="t", streams=streams)))
    (welcome,) = client.receive_only(Welcome)
    assert isinstance(welcome.resumed, list)
    assert [(s.stream, s.recovered) for s in welcome.resumed] == [(4, False)]


def test_hello_comes_first() -> None:
    client = SessionClient()
    with pytest.raises(ConnectionFault) as fault:
        client.send(Ping(t=1.0))
    assert fault.value.code is CloseCode.PROTOCOL
    with pytest.raises(ConnectionFault):
        client.send_frame(1)
    with pytest.raises(ConnectionFault):
        client.session.receive_text(b'{"type":"sing"}')


def test_hello_comes_once() -> None:
    client = SessionClient().hello()
    client.send(Hello())
    assert problems(client) == ["unexpected-message"]


def test_hello_must_come_in_time() -> None:
    client = SessionClient(limits=LimitsConfig(hello_timeout_s=2.0))
    client.loop.advance(1.9)
    assert client.faults == []
    client.loop.advance(0.2)
    assert [fault.code for fault in client.faults] == [CloseCode.HELLO_TIMEOUT]


# --- malformed input


@pytest.mark.parametrize(
    ("text", "code"),
    [(b"{", CloseCode.INVALID_DATA), (b"\xff\xfe", CloseCode.INVALID_DATA)],
)
def test_what_is_not_json_ends_the_connection(text: bytes, code: CloseCode) -> None:
    client = SessionClient().hello()
    with pytest.raises(ConnectionFault) as fault:
        client.session.receive_text(text)
    assert fault.value.code is code


def test_a_binary_message_that_is_none_ends_the_connection() -> None:
    client = SessionClient().hello()
    with pytest.raises(ConnectionFault) as fault:
        client.session.receive_binary(b"hello there")
    assert fault.value.code is CloseCode.PROTOCOL_ERROR


@pytest.mark.parametrize(
    ("text", "slug"),
    [
        (b'{"type":"sing"}', "unknown-type"),
        (b'{"type":"open","stream":-1,"model":"m"}', "invalid-message"),
        (b'{"type":"open"}', "invalid-message"),
    ],
)
def test_a_message_that_makes_no_sense_is_told_so(text: bytes, slug: str) -> None:
    client = SessionClient().hello()
    client.session.receive_text(text)
    assert problems(client) == [slug]


# --- open


def test_an_open_stream_has_credit() -> None:
    client = SessionClient().hello()
    client.open(5)
    (opened,) = client.receive()
    assert isinstance(opened, Opened)
    assert (opened.stream, opened.credit.max_frames) == (5, 8)


@pytest.mark.parametrize("second", [5, 4])
def test_stream_ids_rise_and_are_used_once(second: int) -> None:
    client = SessionClient().hello()
    client.open(5)
    client.receive()
    client.send(Open(stream=second, model="fake"))
    assert problems(client) == ["stream-id-reused"]


def test_an_unknown_model_is_told_and_what_was_sent_to_it_is_ignored() -> None:
    client = SessionClient().hello()
    client.send(Open(stream=1, model="nope"))
    client.send_frame(1)
    (error,) = client.receive_only(ErrorMessage)
    assert error.problem.type.endswith("unknown-model")
    assert error.stream == 1


@pytest.mark.parametrize(
    ("kind", "model_kind"), [(StreamKind.TOKENS, "faces"), (StreamKind.FRAMES, "chat")]
)
def test_a_model_of_another_kind_is_refused(kind: StreamKind, model_kind: str) -> None:
    client = SessionClient(kinds={"fake": model_kind}).hello()
    client.send(Open(stream=1, model="fake", kind=kind))
    assert problems(client) == ["unsupported-option"]
    assert client.engine.lanes == []


def test_streams_are_bounded_and_room_comes_back() -> None:
    client = SessionClient(limits=LimitsConfig(max_streams=1)).hello()
    client.open(1)
    client.send(Open(stream=2, model="fake"))
    assert problems(client) == ["limit-exceeded"]
    client.send(Close(stream=1))
    client.receive()
    client.open(3)
    assert client.receive_only(Opened)


def test_messages_to_streams_that_never_were_are_told_so() -> None:
    client = SessionClient().hello()
    client.send(EndInput(stream=9))
    client.send_frame(1, stream=9)
    assert problems(client) == ["unknown-stream", "unknown-stream"]


def test_messages_to_streams_that_are_over_are_ignored() -> None:
    client = SessionClient().hello()
    client.open(1)
    client.send(Close(stream=1))
    client.receive()
    client.send(Close(stream=1))
    client.send(Ack(stream=1, seq=1))
    client.send_frame(1)
    assert client.receive() == []


def test_a_stream_of_frames_takes_no_prompts() -> None:
    client = SessionClient().hello()
    client.open(1)
    client.receive()
    client.send(Prompt(stream=1, id="p", prompt="hi"))
    (error,) = client.receive_only(ErrorMessage)
    assert (error.stream, error.id) == (1, "p")


def test_cancel_names_a_frame() -> None:
    client = SessionClient().hello()
    client.open(1)
    client.receive()
    client.send(Cancel(stream=1, id="p"))
    assert problems(client) == ["invalid-message"]


def test_a_stream_ends_once() -> None:
    client = SessionClient().hello()
    client.open(1)
    client.send_frame(1)
    client.send(EndInput(stream=1))
    client.receive()
    client.send(EndInput(stream=1))  # says nothing new
    client.send_frame(2)
    assert problems(client) == ["unexpected-message"]


# --- liveness


def test_ping_is_answered_with_the_servers_time() -> None:
    client = SessionClient().hello()
    client.send(Ping(t=12.5))
    (pong,) = client.receive()
    assert pong == ServerPong(t=12.5, now_us=client.clock.now_us())


def test_a_client_that_answers_pings_lives() -> None:
    client = SessionClient().hello()
    for _ in range(20):
        client.loop.advance(10.0)
        for ping in client.receive_only(Ping):
            client.send(ClientPong(t=ping.t))
    assert client.faults == []


def test_a_client_that_only_uploads_does_not_live() -> None:
    client = SessionClient().hello()
    lane = client.open(1)
    for seq in range(50):
        client.loop.advance(1.0)
        client.send_frame(seq)
        lane.answer(seq)
        for result in client.receive_only(ResultMessage):
            client.send(Ack(stream=1, seq=result.seq))
    assert [fault.code for fault in client.faults] == [CloseCode.NO_PONG]


def test_results_without_acks_end_the_connection_on_time() -> None:
    limits = LimitsConfig(ack_deadline_s=4.0, ping_interval_s=1000.0)
    client = SessionClient(limits=limits).hello()
    lane = client.open(1)
    client.loop.advance(0.3)
    for seq in range(16):
        client.send_frame(seq)
        lane.answer(seq)
        client.receive()
    client.loop.advance(3.9)
    assert client.faults == []
    client.loop.advance(0.2)
    assert [fault.code for fault in client.faults] == [CloseCode.SLOW_READER]


def test_acks_in_time_keep_the_connection() -> None:
    limits = LimitsConfig(ack_deadline_s=4.0, ping_interval_s=1000.0)
    client = SessionClient(limits=limits).hello()
    lane = client.open(1)
    for seq in range(100):
        client.loop.advance(0.5)
        client.send_frame(seq)
        lane.answer(seq)
        client.receive()
        if seq % 8 == 7:
            client.send(Ack(stream=1, seq=seq))
    assert client.faults == []


def test_an_ack_of_what_was_never_sent_does_not_switch_the_watch_off() -> None:
    limits = LimitsConfig(ack_deadline_s=4.0, ping_interval_s=1000.0)
    client = SessionClient(limits=limits).hello()
    lane = client.open(1)
    client.send(Ack(stream=1, seq=10**9))
    for seq in range(16):
        client.send_frame(seq)
        lane.answer(seq)
        client.receive()
    client.loop.advance(5.0)
    assert [fault.code for fault in client.faults] == [CloseCode.SLOW_READER]


def test_control_messages_that_nobody_reads_end_the_connection_once() -> None:
    client = SessionClient().hello()
    for step in range(1000):
        client.send(Ping(t=float(step)))
    assert [fault.code for fault in client.faults] == [CloseCode.SLOW_READER]


# --- drain and close


def test_draining_refuses_streams_and_frames_and_answers_the_rest() -> None:
    client = SessionClient().hello()
    lane = client.open(1)
    client.send_frame(1)
    client.receive()
    client.session.drain(5000)
    assert client.receive() == [GoAway(deadline_ms=5000)]
    client.send(Open(stream=2, model="fake"))
    client.send_frame(2)
    assert problems(client) == ["shutting-down", "shutting-down"]
    assert not client.session.is_idle
    lane.answer(1)
    assert not client.session.is_idle
    outgoing = client.take()
    assert outgoing is not None
    client.session.handle_sent(outgoing)
    client.receive()
    assert client.session.is_idle


def test_what_is_unanswered_when_time_is_up_is_told_as_lost_to_the_shutdown() -> None:
    client = SessionClient().hello()
    lane = client.open(policy="lossless")
    for seq in range(4):
        client.send_frame(seq)
    lane.answer(2)  # held: results leave in order
    client.receive()
    client.session.drain(1000)
    client.session.give_up()
    assert not client.session.is_idle
    received = client.receive()
    drops = [message for message in received if isinstance(message, Drop)]
    assert [(drop.reason, drop.first, drop.last, drop.count) for drop in drops] == [
        ("shutdown", 0, 1, 2),
        ("shutdown", 3, 3, 1),
    ]
    assert [message.seq for message in received if isinstance(message, ResultMessage)] == [2]
    assert client.session.is_idle
    assert lane.is_closed
    client.registry.check_integrity()
    client.send_frame(4)
    assert problems(client) == ["shutting-down"]


def test_a_stream_that_was_ending_is_closed_when_time_is_up() -> None:
    client = SessionClient().hello()
    client.open()
    client.send_frame(0)
    client.send(EndInput(stream=1))
    client.receive()
    client.session.drain(1000)
    client.session.give_up()
    client.session.give_up()
    *_, drop, closed = client.receive()
    assert isinstance(drop, Drop)
    assert isinstance(closed, Closed)
    assert (closed.accepted, closed.dropped) == (1, 1)


def test_a_session_that_is_not_draining_gives_nothing_up() -> None:
    client = SessionClient()
    client.session.give_up()
    client.hello().open()
    client.send_frame(0)
    client.session.give_up()
    assert client.receive_only(Drop) == []


def test_a_closed_session_has_counted_everything_and_holds_nothing() -> None:
    client = SessionClient().hello()
    lane = client.open(1, policy="fifo")
    for seq in range(5):
        client.send_frame(seq)
    lane.answer(1)  # held
    lane.answer(0)  # queued, both
    client.session.close("connection lost")
    client.session.close("again")
    totals = client.registry.statistics().models["fake"]
    assert (totals.accepted, totals.in_flight) == (5, 0)
    assert totals.dropped == {"disconnected": 5}
    client.registry.check_integrity()
    assert (len(client.registry), len(client.clock), client.session.num_streams) == (0, 0, 0)
    assert lane.is_closed
    assert client.take() is None


def test_what_comes_after_the_end_is_ignored() -> None:
    client = SessionClient().hello()
    lane = client.open(1)
    client.send_frame(1)
    outgoing = client.take()
    assert outgoing is not None
    client.session.close("connection lost")
    client.session.handle_sent(outgoing)
    lane.answer(1)
    client.send(Ping(t=1.0))
    client.send_frame(2)
    client.session.drain(1)
    assert client.take() is None
    client.registry.check_integrity()


def test_frames_lost_in_a_restart_are_counted_as_such() -> None:
    client = SessionClient().hello()
    client.open(1)
    client.send_frame(1)
    client.session.drain(100)
    client.session.close("restart")
    assert client.registry.statistics().models["fake"].dropped == {"shutdown": 1}


def test_a_thousand_short_sessions_leave_nothing_behind() -> None:
    client = SessionClient(registry=SessionRegistry(1))
    for _ in range(1000):
        client.session.close("gone")
        client = SessionClient(
            registry=client.registry, loop=client.loop, engine=client.engine
        ).hello()
        client.open(1)
        client.send_frame(1)
    client.session.close("gone")
    assert client.registry.statistics().models["fake"].in_flight == 0
    assert (len(client.registry), client.loop.num_armed) == (0, 0)


def test_input_is_bounded_over_all_sessions() -> None:
    registry = SessionRegistry(2, max_input_bytes=len(jpeg()))
    first = SessionClient(registry=registry).hello()
    second = SessionClient(registry=registry).hello()
    lane = first.open(1)
    second.open(1)
    first.send_frame(1)
    second.send_frame(1)
    (drop,) = second.receive_only(Drop)
    assert drop.reason == "queue_full"
    lane.answer(1)
    first.receive()
    second.send_frame(2)
    assert second.receive_only(Drop) == []
    second.session.close("gone")
    assert registry.statistics().input_bytes == 0


def test_sessions_are_bounded() -> None:
    registry = SessionRegistry(1)
    first = SessionClient(registry=registry)
    with pytest.raises(RequestProblem):
        SessionClient(registry=registry)
    first.session.close("done")
    SessionClient(registry=registry)
    assert registry.statistics().sessions_refused == 1


def test_closed_is_the_last_message_of_a_stream() -> None:
    client = SessionClient().hello()
    lane = client.open(1)
    client.send_frame(1)
    client.send(EndInput(stream=1))
    client.receive()
    lane.answer(1)
    messages = client.receive()
    assert [type(message) for message in messages] == [ResultMessage, Closed]
    assert lane.is_closed
    assert client.session.num_streams == 0


def test_a_stream_is_refused_only_when_no_place_in_the_queue_is_left() -> None:
    registry = SessionRegistry(1, credit=CreditPools({"fake": 3}))
    client = SessionClient(registry=registry).hello()
    for stream in (1, 2, 3):
        client.send(Open(stream=stream, model="fake", options=StreamOptions(policy="lossless")))
    assert len(client.receive_only(Opened)) == 3
    client.send(Open(stream=4, model="fake"))
    (error,) = client.receive()
    assert error.problem.type.endswith("overloaded")
    assert error.retry_after_ms == 1000
    client.send(Close(stream=2))
    client.receive()
    client.send(Open(stream=5, model="fake"))
    assert len(client.receive_only(Opened)) == 1


def test_a_stream_that_cannot_be_opened_takes_no_place() -> None:
    registry = SessionRegistry(1, credit=CreditPools({"unknown": 1}))
    client = SessionClient(registry=registry).hello()
    client.send(Open(stream=1, model="unknown"))
    (error,) = client.receive()
    assert error.problem.type.endswith("unknown-model")
    assert registry.credit.of("unknown").num_free == 1
