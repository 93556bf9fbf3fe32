"""WebSocket clients that ask for answer after answer and note all there is to know of each."""

from __future__ import annotations

import asyncio
import time
from array import array
from dataclasses import dataclass, field
from typing import cast

import msgspec
import numpy as np

from engine.llm.request import Usage
from gateway.wire.codec import decode_server, encode
from gateway.wire.messages import (
    Ack,
    ClientPong,
    Close,
    EndOutput,
    ErrorMessage,
    Hello,
    Open,
    Ping,
    Prompt,
    StreamKind,
    Token,
)
from loadtest.delivery.evenness import Evenness, evenness
from loadtest.delivery.sources import Array
from loadtest.delivery.token_clients import ACK_EVERY, Client, client_frame, connect_all

STREAM = 1
LEAVE_S = 5.0
_CLOSE, _DONE = 8, (1000).to_bytes(2, "big")


def _future() -> asyncio.Future[None]:
    return asyncio.get_running_loop().create_future()


@dataclass(slots=True, eq=False)
class Answer:
    """What came for one prompt; seconds, on the monotonic clock, which all processes of a machine
    share."""

    num_asked: int
    sent_at: float
    arrivals: array[float] = field(default_factory=lambda: array("d"))
    paces: array[float] = field(default_factory=lambda: array("d"))  # announced with each of them
    first_text: str = ""
    num_told: int = 0  # tokens, as the end says
    finish_reason: str = ""
    refusal: str = ""  # type of the problem that it was answered with
    over: asyncio.Future[None] = field(default_factory=_future)

    @property
    def is_whole(self) -> bool:
        """It ended as asked for, with as many tokens."""
        return self.finish_reason == "length" and self.num_told == self.num_asked

    @property
    def evenness_ms(self) -> Evenness:
        """Of its gaps so far, at least two, in milliseconds."""
        gaps_ms = self.gaps_ms
        return evenness(gaps_ms, 1e3 * np.array(self.paces[: len(gaps_ms)]))

    @property
    def gaps_ms(self) -> Array:
        return 1e3 * np.diff(self.arrivals)

    def settle(self) -> None:
        if not self.over.done():
            self.over.set_result(None)


class PromptClient(Client):
    """One connection with one stream of answers. ``has_hole``: an event was missing or twice."""

    def __init__(self, port: int, model: str) -> None:
        super().__init__(port)
        self.has_hole = False
        self.closed: asyncio.Future[None] = _future()
        self._model = model
        self._unanswered: dict[str, Answer] = {}
        self._num_asked = 0
        self._num_events = 0

    def begin(self) -> None:
        """Open the stream; once, when connected."""
        self.send(encode(Hello()))
        self.send(encode(Open(stream=STREAM, model=self._model, kind=StreamKind.TOKENS)))

    def ask(self, text: str, num_tokens: int) -> Answer:
        """An answer of exactly so many tokens; ``Answer.over`` is done when there is no more."""
        self._num_asked += 1
        name = str(self._num_asked)
        sampling = {"max_tokens": num_tokens, "ignore_eos": True}
        prompt = Prompt(
            stream=STREAM,
            id=name,
            prompt=text,
            sampling=msgspec.Raw(msgspec.json.encode(sampling)),
        )
        answer = self._unanswered[name] = Answer(num_tokens, time.monotonic())
        self.send(encode(prompt))
        if self.is_lost:
            self._give_up()
        return answer

    def leave(self) -> None:
        """Withdraw what is unanswered and say goodbye; ``closed`` is done when that is heard."""
        self.send(encode(Close(stream=STREAM)))
        if self.transport is not None and not self.transport.is_closing():
            self.transport.write(client_frame(_DONE, _CLOSE))

    def connection_lost(self, error: Exception | None) -> None:
        super().connection_lost(error)
        self._give_up()
        self.closed.set_result(None)

    def on_text(self, data: bytes, now: float) -> None:
        if not data.startswith(b"{"):
            return  # a close frame, which the end of the connection follows
        match decode_server(data):
            case Token() as token:
                self._note_event(token.seq)
                self._take_token(self._unanswered[token.id], token, now)
            case EndOutput() as end:
                self._note_event(end.seq)
                answer = self._unanswered.pop(end.id)
                answer.finish_reason = end.finish_reason
                if isinstance(end.usage, msgspec.Raw):
                    usage = msgspec.json.decode(end.usage, type=Usage)
                    answer.num_told = usage.completion_tokens
                answer.settle()
            case ErrorMessage() as error:
                self._take_error(error)
            case Ping(t=t):
                self.send(encode(ClientPong(t=t)))

    def _take_token(self, answer: Answer, token: Token, now: float) -> None:
        if not answer.arrivals:
            answer.first_text = token.text
        answer.arrivals.append(now)
        answer.paces.append(token.pace / 1e3 if isinstance(token.pace, float) else float("nan"))

    def _take_error(self, error: ErrorMessage) -> None:
        if isinstance(error.seq, int):
            self._note_event(error.seq)
        name = error.id if isinstance(error.id, str) else ""
        if (answer := self._unanswered.pop(name, None)) is None:
            raise RuntimeError(f"the gateway complains: {error.problem}")
        answer.refusal = error.problem.type
        answer.settle()

    def _note_event(self, seq: int) -> None:
        self.has_hole |= seq != self._num_events
        self._num_events += 1
        if self._num_events % ACK_EVERY == 0:
            self.send(encode(Ack(stream=STREAM, seq=seq)))

    def _give_up(self) -> None:
        for answer in self._unanswered.values():
            answer.settle()
        self._unanswered.clear()


async def open_clients(port: int, count: int, model: str) -> list[PromptClient]:
    """Connected, each with its stream open; raises OSError."""
    clients = [PromptClient(port, model) for _ in range(count)]
    await connect_all(clients, port)
    for client in clients:
        client.begin()
    return clients


async def leave_all(clients: list[PromptClient]) -> None:
    """Returns when the gateway has let go of them, or after ``LEAVE_S``."""
    for client in clients:
        client.leave()
    await asyncio.wait([client.closed for client in clients], timeout=LEAVE_S)
    for client in clients:
        cast(asyncio.Transport, client.transport).abort()
