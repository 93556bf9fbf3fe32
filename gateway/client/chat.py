"""One prompt and its answer, piece by piece."""

from __future__ import annotations

import asyncio
import time
from collections import deque
from collections.abc import AsyncGenerator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import msgspec
from msgspec import UNSET

from gateway.client.acks import AckTracker
from gateway.client.attached import StreamOwner
from gateway.client.errors import LostError, StreamError, problem_text
from gateway.client.link import Link
from gateway.wire import codec
from gateway.wire.codec import BinaryMessage
from gateway.wire.messages import (
    MAX_STREAM,
    MAX_TEXT_BYTES,
    Close,
    Closed,
    EndInput,
    EndOutput,
    ErrorMessage,
    Open,
    Opened,
    Prompt,
    ServerMessage,
    StreamKind,
    StreamOptions,
    Token,
    TokenTiming,
)

PROMPT_ID = "1"  # a stream carries one prompt
MAX_UNREAD = 64 * 1024  # events; no answer of a model is that long
OPEN_TIMEOUT_S = 10.0
CLOSE_TIMEOUT_S = 2.0
DEFAULT_DEADLINE_S = 600.0  # the gateway's own default
GRACE_S = 30.0  # beyond the deadline, without any message of the stream


class TextUsage(msgspec.Struct, frozen=True, kw_only=True):
    """What the gateway counted, in tokens."""

    prompt_tokens: int
    completion_tokens: int
    total_tokens: int
    cached_tokens: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class TextEvent:
    """New text, of ``num_tokens`` tokens; the last event has a ``finish_reason`` and no text.

    ``received_at`` is on the clock of ``time.monotonic``. ``pace_ms`` is the time until the next
    event is due, None for text that leaves as it comes. ``timing`` parts the engine's time from
    the delay of pacing, if it was asked for. Finish reasons are ``stop``, ``length``,
    ``content_filter`` and ``cancelled``. ``version`` is of what answered, told with the end.
    """

    text: str
    seq: int
    received_at: float
    num_tokens: int = 0
    pace_ms: float | None = None
    timing: TokenTiming | None = None
    finish_reason: str | None = None
    usage: TextUsage | None = None
    version: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class ChatSpec:
    """What is asked; the messages' JSON has been checked to fit into one control message."""

    open: Open
    prompt: Prompt
    deadline_s: float


def chat_spec(
    model: str,
    *,
    messages: Sequence[Any] | None,
    prompt: str | None,
    sampling: Mapping[str, Any] | None,
    options: StreamOptions,
) -> ChatSpec:
    """Raises ValueError: not exactly one of messages and prompt, or too long for a WebSocket."""
    if (messages is None) == (prompt is None):
        raise ValueError("exactly one of messages and prompt is needed")
    asked = Prompt(
        stream=MAX_STREAM,
        id=PROMPT_ID,
        messages=UNSET if messages is None else msgspec.Raw(msgspec.json.encode(messages)),
        prompt=UNSET if prompt is None else prompt,
        sampling=UNSET if sampling is None else msgspec.Raw(msgspec.json.encode(dict(sampling))),
    )
    size_bytes = len(codec.encode(asked))
    if size_bytes > MAX_TEXT_BYTES:
        raise ValueError(
            f"a prompt has at most {MAX_TEXT_BYTES} bytes here, this one {size_bytes}; "
            "send it to /v1/chat/completions"
        )
    deadline_ms = options.deadline_ms
    return ChatSpec(
        open=Open(stream=MAX_STREAM, model=model, kind=StreamKind.TOKENS, options=options),
        prompt=asked,
        deadline_s=DEFAULT_DEADLINE_S if deadline_ms is None else deadline_ms / 1000,
    )


class ChatStream:
    """An answer, by ``async for``, once; leaving the loop early stops the generation.

    A lost connection is nothing that a program notices: the answer goes on where it broke off,
    without a hole or a repeat, or ends with ``LostError``. Only a prompt of which the server has
    not said a word is asked again. Events wait unread without slowing the server, at most
    ``MAX_UNREAD`` of them.
    """

    def __init__(self, owner: StreamOwner, spec: ChatSpec) -> None:
        self.asked_at: float | None = None  # time.monotonic, once the prompt is sent
        self.finish_reason: str | None = None
        self.usage: TextUsage | None = None
        self.version: str | None = None
        self._owner = owner
        self._spec = spec
        self._events: deque[TextEvent] = deque()
        self._changed = asyncio.Event()
        self._acks = AckTracker()
        self._link: Link | None = None
        self._id = 0
        self._heard_at = 0.0
        self._last_seq = -1
        self._is_open = False
        self._is_closing = False
        self._is_started = False
        self._is_finished = False
        self._failure: Exception | None = None

    # --- for the program

    def __aiter__(self) -> AsyncGenerator[TextEvent, None]:
        return self._iterate()

    async def aclose(self) -> None:
        """Stop the answer, wait a little for the server's last word; idempotent."""
        self._is_closing = True
        if not self._is_finished and self._link is not None:
            self._link.post(Close(stream=self._id))
            try:
                async with asyncio.timeout(CLOSE_TIMEOUT_S):
                    await self._until_finished()
            except TimeoutError:
                pass  # forgotten all the same
        self.finish(None)

    async def _iterate(self) -> AsyncGenerator[TextEvent, None]:
        if self._is_started:
            raise RuntimeError("an answer can be iterated once")
        self._is_started = True
        self._owner.start_stream(self)
        try:
            while (event := await self._next()) is not None:
                yield event
        finally:
            await self.aclose()

    async def _next(self) -> TextEvent | None:
        while not self._events and not self._is_finished:
            self._changed.clear()
            await self._changed.wait()  # bounded by ``on_tick``
        if self._events:
            event = self._events.popleft()
            self._acks.rendered(event.seq)
            return event
        if self._failure is not None:
            raise self._failure
        return None

    async def _until_finished(self) -> None:
        while not self._is_finished:
            self._changed.clear()
            await self._changed.wait()

    # --- for the connection

    def on_attached(self, link: Link, stream: int) -> None:
        self._link, self._id = link, stream
        self.asked_at = self._heard_at = time.monotonic()
        link.post(msgspec.structs.replace(self._spec.open, stream=stream))
        link.post(msgspec.structs.replace(self._spec.prompt, stream=stream))
        link.post(EndInput(stream=stream))

    @property
    def last_seq(self) -> int:
        return self._last_seq

    def on_suspended(self) -> None:
        self._link = None
        self._acks.reset()
        if self.finish_reason is not None or self._is_closing:
            self.finish(None)  # only ``closed`` is missing, or nobody wants the rest

    def on_resumed(self, link: Link, num_received: int) -> None:
        self._link = link
        self._heard_at = time.monotonic()
        self._is_open = True
        if num_received == 0:
            link.post(msgspec.structs.replace(self._spec.prompt, stream=self._id))
        link.post(EndInput(stream=self._id))  # once more, if it has arrived

    def on_detached(self) -> None:
        self._link = None
        if not self._is_open and not self._is_closing:
            return  # it may never have arrived: ``on_attached`` asks again
        lost = LostError("the connection was lost before the answer was complete")
        self.finish(None if self.finish_reason is not None else lost)

    def on_message(self, message: ServerMessage) -> None:
        self._heard_at = time.monotonic()
        if not self._is_next(message):
            return
        match message:
            case Token():
                self._add(_text_event(message, self._heard_at))
            case EndOutput():
                self._on_end(message)
            case ErrorMessage():
                self._on_error(message)
            case Opened():
                self._is_open = True
            case Closed():
                self._acknowledge()  # or the server would keep the last events for a while
                no_end = StreamError("the server ended the answer without a reason")
                self.finish(None if self.finish_reason is not None else no_end)
        self._changed.set()

    def on_binary(self, message: BinaryMessage) -> None:
        """Answers have no attachments."""

    def on_tick(self, now: float) -> None:
        if self._acks.is_due(now):
            self._acknowledge()
        if self._is_finished or self._link is None:
            return
        silent_s = now - self._heard_at
        if not self._is_open and silent_s > OPEN_TIMEOUT_S:
            self.finish(StreamError("the server did not open the stream"))
        elif silent_s > self._spec.deadline_s + GRACE_S:
            self.finish(StreamError("the server did not finish the answer"))

    def pause(self) -> None:
        """The prompt is sent already."""

    def finish(self, error: Exception | None) -> None:
        if self._is_finished:
            return
        self._is_finished = True
        self._failure = self._failure or error
        self._owner.forget_stream(self)
        self._changed.set()

    # --- inside

    def _is_next(self, message: ServerMessage) -> bool:
        """Whether to take it: an event that has come before is not told again."""
        if not isinstance(message, Token | EndOutput | ErrorMessage):
            return True
        seq = message.seq
        if not isinstance(seq, int):
            return True  # an error that is no event
        if seq == self._last_seq + 1:
            self._last_seq = seq
            return True
        if seq > self._last_seq:
            if self._link is not None:
                self._link.post(Close(stream=self._id))
            self.finish(LostError(f"event {seq} came after {self._last_seq}"))
        return False

    def _on_end(self, message: EndOutput) -> None:
        self.finish_reason = message.finish_reason
        if isinstance(message.usage, msgspec.Raw):
            self.usage = msgspec.json.decode(message.usage, type=TextUsage)
        self.version = None if message.version is UNSET else message.version
        self._add(
            TextEvent(
                text="",
                seq=message.seq,
                received_at=self._heard_at,
                finish_reason=message.finish_reason,
                usage=self.usage,
                version=self.version,
            )
        )

    def _on_error(self, message: ErrorMessage) -> None:
        self._failure = StreamError(problem_text(message.problem), problem=message.problem)
        if isinstance(message.seq, int):
            self._acks.received(message.seq, self._heard_at)
        if not self._is_open:  # refused: no ``closed`` will follow
            self.finish(None)

    def _add(self, event: TextEvent) -> None:
        self._acks.received(event.seq, event.received_at)
        if self._acks.is_due(event.received_at):
            self._acknowledge()
        if len(self._events) >= MAX_UNREAD and self._link is not None:
            self._link.post(Close(stream=self._id))
            self.finish(StreamError(f"{MAX_UNREAD} events wait unread"))
        elif not self._is_finished:
            self._events.append(event)

    def _acknowledge(self) -> None:
        if self._link is not None:
            ack = self._acks.take(self._id)
            if ack is not None:
                self._link.post(ack)


def _text_event(token: Token, received_at: float) -> TextEvent:
    return TextEvent(
        text=token.text,
        seq=token.seq,
        received_at=received_at,
        num_tokens=1 if token.count is UNSET else token.count,
        pace_ms=None if token.pace is UNSET else token.pace,
        timing=None if token.timing is UNSET else token.timing,
    )
