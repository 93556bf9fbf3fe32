"""One answer as a client reads it, without a socket."""

from __future__ import annotations

import asyncio
import time
from typing import Any

import msgspec
import pytest

from gateway.client import chat
from gateway.client.chat import ChatStream, TextEvent, chat_spec
from gateway.client.errors import LostError, StreamError
from gateway.wire.messages import (
    Ack,
    Close,
    Closed,
    CreditGrant,
    EndInput,
    EndOutput,
    ErrorMessage,
    Open,
    Opened,
    Problem,
    Prompt,
    StreamKind,
    StreamOptions,
    Token,
)

pytestmark = pytest.mark.unit

PROBLEM = Problem(type="urn:clawstream:problem:x", title="No", status=422)
CLOSED = Closed(stream=3, accepted=1, results=1, dropped=0, errors=0, cancelled=0)


class FakeLink:
    """Keeps what is posted."""

    def __init__(self) -> None:
        self.posted: list[Any] = []

    def post(self, message: Any) -> None:
        self.posted.append(message)


class Owner:
    """A connection that is there."""

    def __init__(self) -> None:
        self.link = FakeLink()
        self.forgotten = 0

    def start_stream(self, stream: Any) -> None:
        stream.on_attached(self.link, 3)

    def reopen_stream(self, stream: Any) -> None:
        raise AssertionError("an answer is not asked for twice")

    def forget_stream(self, stream: Any) -> None:
        self.forgotten += 1


def a_chat(**options: Any) -> tuple[ChatStream, Owner]:
    owner = Owner()
    spec = chat_spec(
        "m",
        messages=[{"role": "user", "content": "Hi"}],
        prompt=None,
        sampling={"temperature": 0},
        options=StreamOptions(**options),
    )
    return ChatStream(owner, spec), owner


def opened(stream: ChatStream) -> None:
    stream.on_message(Opened(stream=3, credit=CreditGrant(max_frames=0, max_bytes=0)))


def token(seq: int, text: str = "x") -> Token:
    return Token(stream=3, id="1", seq=seq, text=text)


def end(
    seq: int,
    reason: str = "stop",
    usage: bytes | None = None,
    version: str | msgspec.UnsetType = msgspec.UNSET,
) -> EndOutput:
    raw = msgspec.UNSET if usage is None else msgspec.Raw(usage)
    return EndOutput(stream=3, id="1", seq=seq, finish_reason=reason, usage=raw, version=version)


async def read(stream: ChatStream) -> list[str]:
    return [event.text async for event in stream]


async def read_events(stream: ChatStream) -> list[TextEvent]:
    return [event async for event in stream]


async def started(stream: ChatStream) -> asyncio.Task[list[str]]:
    reading = asyncio.create_task(read(stream))
    await asyncio.sleep(0)
    return reading


@pytest.mark.parametrize(("told", "version"), [("1+int8", "1+int8"), (msgspec.UNSET, None)])
async def test_the_last_event_names_the_version_that_answered_if_it_is_told(
    told: str | msgspec.UnsetType, version: str | None
) -> None:
    stream, _ = a_chat()
    reading = asyncio.create_task(read_events(stream))
    await asyncio.sleep(0)
    opened(stream)
    stream.on_message(token(0))
    stream.on_message(end(1, version=told))
    stream.on_message(CLOSED)
    assert [event.version for event in await reading] == [None, version]
    assert stream.version == version


async def test_everything_is_asked_in_one_go() -> None:
    stream, owner = a_chat(priority="realtime")
    reading = await started(stream)
    open_, prompt, ended = owner.link.posted
    assert isinstance(open_, Open)
    assert (open_.kind, open_.options.priority) == (StreamKind.TOKENS, "realtime")
    assert isinstance(prompt, Prompt)
    assert bytes(prompt.messages) == b'[{"role":"user","content":"Hi"}]'
    assert bytes(prompt.sampling) == b'{"temperature":0}'
    assert ended == EndInput(stream=3)
    assert {open_.stream, prompt.stream} == {3}
    opened(stream)
    stream.on_message(token(0, "Hel"))
    stream.on_message(token(1, "lo"))
    usage = b'{"prompt_tokens":2,"completion_tokens":2,"total_tokens":4}'
    stream.on_message(end(2, usage=usage))
    stream.on_message(CLOSED)
    assert await reading == ["Hel", "lo", ""]
    assert stream.usage is not None
    assert stream.usage.total_tokens == 4
    assert owner.forgotten == 1


async def test_every_eighth_event_is_acknowledged_and_the_rest_after_a_second() -> None:
    stream, owner = a_chat()
    reading = await started(stream)
    opened(stream)
    for seq in range(9):
        stream.on_message(token(seq))
    assert owner.link.posted[3:] == [Ack(stream=3, seq=7)]
    await asyncio.sleep(0)
    stream.on_tick(time.monotonic() + 0.9)
    assert owner.link.posted[-1] == Ack(stream=3, seq=7)
    stream.on_tick(time.monotonic() + 1.0)
    assert owner.link.posted[-1] == Ack(stream=3, seq=8, rendered_seq=8)
    reading.cancel()


async def test_an_error_ends_the_answer_after_what_was_said() -> None:
    stream, _ = a_chat()
    reading = await started(stream)
    opened(stream)
    stream.on_message(token(0))
    stream.on_message(ErrorMessage(stream=3, id="1", seq=1, problem=PROBLEM, retryable=False))
    stream.on_message(CLOSED)
    with pytest.raises(StreamError, match="No") as failed:
        await reading
    assert failed.value.problem == PROBLEM


async def test_a_stream_that_is_refused_is_over_at_once() -> None:
    stream, owner = a_chat()
    reading = await started(stream)
    stream.on_message(ErrorMessage(stream=3, problem=PROBLEM, retryable=False))
    with pytest.raises(StreamError, match="No"):
        await reading
    assert owner.forgotten == 1


async def test_a_server_that_closes_without_an_end_is_an_error() -> None:
    stream, _ = a_chat()
    reading = await started(stream)
    opened(stream)
    stream.on_message(CLOSED)
    with pytest.raises(StreamError, match="without a reason"):
        await reading


async def test_closing_early_stops_the_answer() -> None:
    stream, owner = a_chat()
    iterator = aiter(stream)
    first = asyncio.create_task(anext(iterator))
    await asyncio.sleep(0)
    opened(stream)
    stream.on_message(token(0, "x"))
    assert (await first).text == "x"
    closing = asyncio.create_task(iterator.aclose())
    await asyncio.sleep(0)
    assert owner.link.posted[-1] == Close(stream=3)
    stream.on_message(end(1, "cancelled"))
    stream.on_message(CLOSED)
    await closing
    assert stream.finish_reason == "cancelled"


@pytest.mark.parametrize(
    ("is_open", "silent_s", "reason"),
    [(False, 11.0, "did not open"), (True, 32.0, "did not finish")],
)
async def test_a_silent_server_is_given_up(is_open: bool, silent_s: float, reason: str) -> None:
    stream, _ = a_chat(deadline_ms=1000.0)
    reading = await started(stream)
    if is_open:
        opened(stream)
    assert stream.asked_at is not None
    stream.on_tick(stream.asked_at + silent_s - 2.0)
    assert not reading.done()
    stream.on_tick(stream.asked_at + silent_s)
    with pytest.raises(StreamError, match=reason):
        await reading


async def test_events_nobody_takes_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(chat, "MAX_UNREAD", 3)
    stream, owner = a_chat()
    iterator = aiter(stream)
    first = asyncio.create_task(anext(iterator))
    await asyncio.sleep(0)
    opened(stream)
    for seq in range(6):
        stream.on_message(token(seq, str(seq)))
    assert owner.link.posted[-1] == Close(stream=3)
    assert (await first).text == "0"
    with pytest.raises(StreamError, match="unread"):
        await read_rest(iterator)


async def read_rest(iterator: Any) -> list[str]:
    return [event.text async for event in iterator]


async def test_an_answer_is_iterated_once() -> None:
    stream, _ = a_chat()
    reading = await started(stream)
    with pytest.raises(RuntimeError, match="once"):
        await read(stream)
    stream.finish(None)
    await reading


# --- breaks


async def begun(num_tokens: int) -> tuple[ChatStream, Owner, Any]:
    """An answer that is being read, with its first tokens."""
    stream, owner = a_chat()
    iterator = aiter(stream)
    reading = asyncio.ensure_future(anext(iterator))
    await asyncio.sleep(0)
    opened(stream)
    for seq in range(num_tokens):
        stream.on_message(token(seq, str(seq)))
    await reading
    return stream, owner, iterator


async def test_an_answer_goes_on_on_another_connection() -> None:
    stream, owner, iterator = await begun(2)
    stream.on_suspended()
    assert stream.last_seq == 1
    link: Any = FakeLink()
    stream.on_resumed(link, 1)
    assert link.posted == [EndInput(stream=3)]
    for message in (token(0, "0"), token(1, "1"), token(2, "2")):
        stream.on_message(message)
    stream.on_message(EndOutput(stream=3, id="1", seq=3, finish_reason="stop"))
    stream.on_message(CLOSED)
    assert [event.text async for event in iterator] == ["1", "2", ""]
    assert isinstance(link.posted[-1], Ack)  # the server need not keep anything
    assert owner.forgotten == 1


async def test_a_prompt_that_did_not_arrive_is_sent_again() -> None:
    stream, _, _ = await begun(1)
    stream.on_suspended()
    link: Any = FakeLink()
    stream.on_resumed(link, 0)
    assert [type(message) for message in link.posted] == [Prompt, EndInput]
    assert link.posted[0].stream == 3


async def test_what_cannot_be_recovered_is_an_error_after_what_came() -> None:
    stream, _, iterator = await begun(2)
    stream.on_suspended()
    stream.on_detached()
    assert (await anext(iterator)).text == "1"
    with pytest.raises(LostError):
        await anext(iterator)


async def test_a_prompt_of_which_nothing_was_heard_is_asked_again() -> None:
    stream, owner = a_chat()
    reading = asyncio.ensure_future(anext(aiter(stream)))
    await asyncio.sleep(0)
    stream.on_suspended()
    stream.on_detached()
    link: Any = FakeLink()
    stream.on_attached(link, 8)
    assert [type(message) for message in link.posted] == [Open, Prompt, EndInput]
    opened(stream)
    stream.on_message(token(0, "a"))
    assert (await reading).text == "a"
    assert owner.forgotten == 0


async def test_an_answer_that_has_its_end_needs_no_recovery() -> None:
    stream, owner, iterator = await begun(1)
    stream.on_message(EndOutput(stream=3, id="1", seq=1, finish_reason="stop"))
    stream.on_suspended()
    assert [event.finish_reason async for event in iterator] == ["stop"]
    assert owner.forgotten == 1


async def test_a_hole_is_an_error() -> None:
    stream, owner, iterator = await begun(1)
    stream.on_message(token(2, "2"))
    with pytest.raises(LostError, match="event 2 came after 0"):
        await anext(iterator)
    assert Close(stream=3) in owner.link.posted
