"""Prompts in, tokens out: events, receipts, repeats, limits, endings."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from engine.errors import InvalidInput, Overloaded, Unavailable
from engine.llm.request import PromptOptions
from engine.types import Dropped, DropReason, Failed, Priority, Progress
from gateway.config_sections import LimitsConfig
from gateway.errors import CloseCode
from gateway.session.text_stream import TextStream
from gateway.stream.answers import MAX_ANSWER_CHARS
from gateway.wire.messages import (
    Ack,
    Cancel,
    Close,
    Closed,
    EndInput,
    EndOutput,
    ErrorMessage,
    Open,
    Opened,
    Prompt,
    StreamKind,
    Token,
)
from tests.fakes.scripted_engine import ScriptedLane, a_result
from tests.fakes.session_client import SessionClient
from tests.fakes.text_engine import finished

pytestmark = pytest.mark.unit


def a_stream(
    *, limits: LimitsConfig | None = None, **options: Any
) -> tuple[SessionClient, ScriptedLane]:
    client = SessionClient(limits=limits).hello()
    lane = client.open(kind=StreamKind.TOKENS, **options)
    (opened,) = client.receive()
    assert isinstance(opened, Opened)
    assert (opened.credit.max_frames, opened.credit.max_bytes) == (0, 0)
    return client, lane


def ask(client: SessionClient, prompt_id: str = "p", **members: Any) -> None:
    client.send(Prompt(stream=1, id=prompt_id, prompt="Hello", **members))


def say(lane: ScriptedLane, key: int, *texts: str) -> None:
    for text in texts:
        lane.progress(key, text)


def events(client: SessionClient) -> list[tuple[Any, ...]]:
    """What waits, as (seq, id, text or end or problem); checks that ``seq`` has no gap."""
    found: list[tuple[Any, ...]] = []
    for message in client.receive():
        match message:
            case Token(seq=seq, id=prompt_id, text=text):
                found.append((seq, prompt_id, text))
            case EndOutput(seq=seq, id=prompt_id, finish_reason=reason):
                found.append((seq, prompt_id, f"end {reason}"))
            case ErrorMessage(seq=seq, id=prompt_id, problem=problem):
                found.append((seq, prompt_id, problem.type.rsplit(":", 1)[-1]))
            case Closed():
                found.append(("closed",))
    seqs = [event[0] for event in found if len(event) > 1]
    assert seqs == list(range(seqs[0], seqs[0] + len(seqs))) if seqs else True
    client.registry.check_integrity()
    client.outbox.check_integrity()
    for stream in client.session._streams:
        assert isinstance(stream, TextStream)
        stream.check_integrity()
    return found


def receipts(client: SessionClient) -> Any:
    return client.registry.statistics().prompts["fake"]


# --- answers


def test_every_token_is_one_event_and_then_comes_the_end_with_usage() -> None:
    client, lane = a_stream()
    ask(client)
    say(lane, 1, "Hel", "", "lo")
    assert events(client) == [(0, "p", "Hel"), (1, "p", "lo")]
    lane.answer(1, finished("length", completion_tokens=3))
    (end,) = client.receive()
    assert isinstance(end, EndOutput)
    assert (end.seq, end.finish_reason, end.version) == (2, "length", "1")
    assert msgspec.json.decode(bytes(end.usage))["completion_tokens"] == 3
    assert receipts(client).results == receipts(client).accepted == 1
    assert client.registry.statistics().texts["fake"].tokens == 3


def test_the_item_carries_payload_tenant_and_deadline() -> None:
    client, lane = a_stream()
    ask(client, deadline_ms=1500.0)
    (item,) = lane.offered
    assert msgspec.json.decode(item.options, type=PromptOptions).tenant == "anonymous"
    assert item.payload == b'{"prompt":"Hello"}'
    assert item.deadline == client.loop.time() + 1.5


def test_prompts_run_in_parallel_and_share_one_count_of_events() -> None:
    client, lane = a_stream()
    ask(client, "a")
    ask(client, "b")
    say(lane, 1, "A")
    say(lane, 2, "B")
    lane.answer(2, finished())
    say(lane, 1, "a")
    lane.answer(1, finished())
    assert events(client) == [
        (0, "a", "A"),
        (1, "b", "B"),
        (2, "b", "end stop"),
        (3, "a", "a"),
        (4, "a", "end stop"),
    ]


def test_a_priority_of_its_own_is_a_lane_of_its_own_and_each_is_opened_once() -> None:
    client, lane = a_stream()
    for number in range(2):
        ask(client, f"n{number}")
        ask(client, f"u{number}", priority="realtime")
    standard, urgent = client.engine.lanes
    assert standard is lane
    assert urgent.spec.priority is Priority.REALTIME
    assert (len(standard.offered), len(urgent.offered)) == (2, 2)
    urgent.answer(2, finished())
    assert events(client) == [(0, "u0", "end stop")]
    client.send(Close(stream=1))
    assert standard.is_closed
    assert urgent.is_closed


def test_a_text_too_long_for_one_message_comes_in_several() -> None:
    client, lane = a_stream()
    ask(client)
    text = "\u0001" * 25_000
    say(lane, 1, text)
    found = events(client)
    assert len(found) == 3
    assert "".join(event[2] for event in found) == text


@pytest.mark.parametrize(
    ("outcome", "slug", "counted"),
    [
        (Failed(InvalidInput("too long")), "invalid-input", "errors"),
        (Failed(Unavailable("down")), "unavailable", "errors"),
        (Dropped(DropReason.DEADLINE), "deadline-exceeded", "deadline"),
        (Dropped(DropReason.SHUTDOWN), "shutting-down", "shutdown"),
        (Dropped(DropReason.WORKER_LOST), "overloaded", "worker_lost"),
        (a_result(b"no answer"), "internal", "errors"),
    ],
)
def test_an_error_replaces_the_end(outcome: Any, slug: str, counted: str) -> None:
    client, lane = a_stream()
    ask(client)
    say(lane, 1, "a")
    lane.answer(1, outcome)
    lane.emit_again(1, finished())
    assert events(client) == [(0, "p", "a"), (1, "p", slug)]
    totals = receipts(client)
    assert (totals.errors if counted == "errors" else totals.dropped[counted]) == 1


def test_news_of_a_prompt_that_is_answered_changes_nothing() -> None:
    client, lane = a_stream()
    ask(client)
    lane.answer(1, finished())
    lane.emit_again(1, Progress("late"))  # type: ignore[arg-type]
    lane.emit_again(1, finished())
    assert events(client) == [(0, "p", "end stop")]


# --- refusals


def test_more_prompts_at_once_than_the_limit_are_refused_on_all_streams_together() -> None:
    client, lane = a_stream(limits=LimitsConfig(max_prompts=2))
    other = client.open(2, kind=StreamKind.TOKENS)
    client.receive()
    ask(client, "a")
    client.send(Prompt(stream=2, id="b", prompt="x"))
    ask(client, "c")
    assert events(client) == [(0, "c", "limit-exceeded")]
    assert (receipts(client).received, receipts(client).refused) == (3, 1)
    other.answer(1, finished())
    ask(client, "c")
    assert len(lane.offered) == 2


def test_a_prompt_that_is_malformed_is_refused_by_its_id() -> None:
    client, _ = a_stream()
    client.send(Prompt(stream=1, id="p"))
    ask(client, "q", pace="even")
    assert events(client) == [(0, "p", "invalid-message"), (1, "q", "unsupported-option")]


def test_what_the_engine_does_not_take_is_an_error_and_the_id_stays_free() -> None:
    client, lane = a_stream()
    client.engine.refusal = Overloaded("full", retry_after_s=0.5)
    ask(client)
    (error,) = client.receive()
    assert isinstance(error, ErrorMessage)
    assert (error.id, error.retryable, error.retry_after_ms) == ("p", True, 500)
    client.engine.refusal = None
    ask(client)
    assert len(lane.offered) == 1
    assert (receipts(client).accepted, receipts(client).errors) == (2, 1)


def test_a_model_that_is_not_there_leaves_nothing_behind() -> None:
    client = SessionClient().hello()
    client.send(Open(stream=1, model="nope", kind=StreamKind.TOKENS))
    ask(client)
    (error,) = client.receive()
    assert error.problem.type.endswith("unknown-model")
    statistics = client.registry.statistics()
    assert (statistics.prompts, statistics.texts, client.session.num_streams) == ({}, {}, 0)


def test_frames_on_a_stream_of_tokens_are_refused() -> None:
    client, _ = a_stream()
    client.send_frame(1)
    (error,) = client.receive()
    assert isinstance(error, ErrorMessage)
    assert error.problem.type.endswith("unexpected-message")


def test_after_goaway_prompts_are_refused_and_answers_still_come() -> None:
    client, lane = a_stream()
    ask(client, "a")
    client.session.drain(1000)
    ask(client, "b")
    assert not client.session.is_idle
    lane.answer(1, finished())
    assert events(client) == [(0, "b", "shutting-down"), (1, "a", "end stop")]
    assert client.session.is_idle


# --- repeats


def test_a_repeated_id_is_told_again_from_the_beginning_and_generates_nothing() -> None:
    client, lane = a_stream()
    ask(client)
    say(lane, 1, "Hel", "lo")
    assert len(events(client)) == 2
    ask(client)
    (token,) = client.receive()
    assert isinstance(token, Token)
    assert (token.seq, token.text, token.replay) == (2, "Hello", True)
    say(lane, 1, "!")
    lane.answer(1, finished())
    assert events(client) == [(3, "p", "!"), (4, "p", "end stop")]
    ask(client)
    assert events(client) == [(5, "p", "Hello!"), (6, "p", "end stop")]
    assert len(lane.offered) == 1
    assert receipts(client).received == 1


def test_a_repeat_before_the_first_token_says_nothing() -> None:
    client, lane = a_stream(limits=LimitsConfig(max_prompts=1))
    ask(client)
    ask(client)
    assert events(client) == []
    say(lane, 1, "x")
    assert events(client) == [(0, "p", "x")]


def test_a_repeat_is_welcome_after_end_too() -> None:
    client, lane = a_stream()
    ask(client)
    say(lane, 1, "x")
    client.send(EndInput(stream=1))
    ask(client)
    assert events(client) == [(0, "p", "x"), (1, "p", "x")]


def test_an_error_that_will_not_change_is_told_again() -> None:
    client, lane = a_stream()
    ask(client)
    lane.answer(1, Failed(InvalidInput("too long")))
    ask(client)
    assert events(client) == [(0, "p", "invalid-input"), (1, "p", "invalid-input")]
    assert len(lane.offered) == 1


def test_an_error_that_may_pass_leaves_the_id_free() -> None:
    client, lane = a_stream()
    ask(client)
    lane.answer(1, Failed(Unavailable("down")))
    ask(client)
    assert len(lane.offered) == 2


def test_an_answer_too_long_to_be_kept_just_goes_on_when_repeated() -> None:
    client, lane = a_stream()
    ask(client)
    say(lane, 1, "x" * (MAX_ANSWER_CHARS + 1))
    events(client)
    ask(client)
    assert events(client) == []
    assert len(lane.offered) == 1


# --- cancel, end, close


def test_a_cancelled_prompt_ends_as_cancelled() -> None:
    client, lane = a_stream()
    ask(client)
    say(lane, 1, "a")
    client.send(Cancel(stream=1, id="p"))
    client.send(Cancel(stream=1, id="p"))
    client.send(Cancel(stream=1, id="nobody"))
    assert lane.items == {}
    assert events(client) == [(0, "p", "a"), (1, "p", "end cancelled")]
    assert receipts(client).cancelled == 1


def test_cancel_names_a_prompt() -> None:
    client, _ = a_stream()
    client.send(Cancel(stream=1, seq=1))
    (error,) = client.receive()
    assert error.problem.type.endswith("invalid-message")


def test_end_finishes_what_runs_and_takes_nothing_new() -> None:
    client, lane = a_stream()
    ask(client, "a")
    client.send(EndInput(stream=1))
    ask(client, "b")
    lane.answer(1, finished())
    assert events(client) == [(0, "b", "unexpected-message"), (1, "a", "end stop"), ("closed",)]
    assert lane.is_closed
    assert client.session.num_streams == 0


def test_close_stops_everything_and_counts_it() -> None:
    client, lane = a_stream()
    for prompt_id in "ab":
        ask(client, prompt_id)
    lane.answer(1, finished())
    client.send(Close(stream=1))
    messages = client.receive()
    assert [type(message) for message in messages] == [EndOutput, EndOutput, Closed]
    assert messages[1].finish_reason == "cancelled"
    closed = messages[2]
    assert (closed.accepted, closed.results, closed.cancelled) == (2, 1, 1)
    assert client.session.num_streams == 0


def test_a_client_that_is_gone_stops_its_answers() -> None:
    client, lane = a_stream()
    ask(client, "a")
    ask(client, "b")
    client.session.close("gone")
    assert lane.is_closed
    assert lane.items == {}
    client.registry.check_integrity()
    assert receipts(client).dropped == {"disconnected": 2}
    assert client.registry.statistics().texts["fake"].endings == {"disconnected": 2}


# --- slow readers, order on the socket


def test_tokens_nobody_reads_end_the_connection_and_none_is_given_up() -> None:
    client, lane = a_stream(limits=LimitsConfig(max_outbox_bytes=64 * 1024))
    ask(client)
    for _ in range(400):
        say(lane, 1, "x" * 1000)
    assert [fault.code for fault in client.faults] == [CloseCode.SLOW_READER]


def test_tokens_that_are_not_acknowledged_end_the_connection() -> None:
    limits = LimitsConfig(ack_deadline_s=1.0, ping_interval_s=1e6)
    client, lane = a_stream(limits=limits)
    ask(client)

    def say_and_read(*texts: str) -> None:
        for text in texts:
            say(lane, 1, text)
            events(client)

    say_and_read(*"abcdefghijklmnop")
    client.loop.advance(0.5)
    client.send(Ack(stream=1, seq=14))
    client.loop.advance(2.0)
    assert client.faults == []
    say_and_read(*"abcdefghijklmnop")
    client.send(Ack(stream=1, seq=10_000))  # beyond what was told: counts as all that was
    say_and_read(*"abcdefghijklmnop")
    client.loop.advance(2.0)
    assert [fault.code for fault in client.faults] == [CloseCode.SLOW_READER]


def test_tokens_pass_results_that_wait() -> None:
    client, lane = a_stream()
    frames = client.open(2, policy="fifo")
    client.receive()
    for seq in range(8):
        client.send_frame(seq, stream=2)
        frames.answer(seq, a_result(b'"%s"' % (b"x" * 2000)))
    first = client.take()
    assert first is not None
    ask(client)
    say(lane, 1, "a", "b", "c")
    order = [outgoing.stream for _ in range(4) if (outgoing := client.take()) is not None]
    assert order == [1, 1, 1, 2] or order == [2, 1, 1, 1]


def test_prompts_that_are_unanswered_when_time_is_up_are_told_so() -> None:
    client, lane = a_stream()
    ask(client, "p")
    ask(client, "q")
    say(lane, 1, "half")
    client.session.drain(1000)
    client.session.give_up()
    client.outbox.pop(0.0)  # goaway
    told = [(1, "p", "shutting-down"), (2, "q", "shutting-down")]
    assert events(client) == [(0, "p", "half"), *told]
    assert receipts(client).dropped == {"shutdown": 2}
    assert lane.is_closed
    assert client.session._streams.find(1) is not None
