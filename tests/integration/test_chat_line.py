"""The chat's connection on its own thread: pieces, errors, stopping, closing."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import AsyncGenerator

import pytest

from gateway.client.errors import ConnectError, StreamError
from gateway.commands.chat_line import ChatLine
from gateway.commands.chat_talk import AnswerEnd, Message

pytestmark = pytest.mark.integration

ASKED = [Message("user", "Hi")]
END = AnswerEnd(finish_reason="stop")


class FakeAnswering:
    """Answers ``Hello`` in two pieces; ``Wait`` never ends, ``Fail`` fails after one piece."""

    def __init__(self, failure: Exception | None = None) -> None:
        self._failure = failure
        self.thread: threading.Thread | None = None
        self.events: list[str] = []

    async def open(self) -> None:
        self.thread = threading.current_thread()
        if self._failure is not None:
            raise self._failure
        self.events.append("opened")

    async def ask(self, messages: list[Message]) -> AsyncGenerator[str | AnswerEnd, None]:
        try:
            yield "Hel"
            if messages[-1].content == "Wait":
                await asyncio.Event().wait()
            if messages[-1].content == "Fail":
                raise StreamError("the model is gone")
            yield "lo"
            yield END
        finally:
            await asyncio.sleep(0)  # cleaning up may await
            self.events.append("answer over")

    async def aclose(self) -> None:
        self.events.append("closed")


def test_answers_come_in_pieces_from_a_thread_of_its_own() -> None:
    answering = FakeAnswering()
    with ChatLine(answering) as line:
        assert list(line.ask(ASKED)) == ["Hel", "lo", END]
        assert list(line.ask(ASKED)) == ["Hel", "lo", END]
    assert answering.thread is not None
    assert answering.thread is not threading.current_thread()
    assert not answering.thread.is_alive()
    assert answering.events == ["opened", "answer over", "answer over", "closed"]


def test_what_opening_raises_is_raised_and_the_thread_ends() -> None:
    answering = FakeAnswering(ConnectError("nobody listens"))
    with pytest.raises(ConnectError, match="nobody listens"), ChatLine(answering):
        pass
    assert answering.thread is not None
    assert not answering.thread.is_alive()


def test_what_answering_raises_is_raised_where_it_was_asked() -> None:
    with ChatLine(FakeAnswering()) as line:
        answer = line.ask([Message("user", "Fail")])
        assert next(answer) == "Hel"
        with pytest.raises(StreamError, match="the model is gone"):
            next(answer)
        assert list(line.ask(ASKED))[-1] == END


def test_closing_an_answer_stops_it_and_the_line_goes_on() -> None:
    answering = FakeAnswering()
    with ChatLine(answering) as line:
        answer = line.ask([Message("user", "Wait")])
        assert next(answer) == "Hel"
        answer.close()
        deadline = time.monotonic() + 5.0
        while "answer over" not in answering.events and time.monotonic() < deadline:
            time.sleep(0.01)
        assert answering.events == ["opened", "answer over"]
        assert list(line.ask(ASKED))[-1] == END


def test_leaving_while_an_answer_runs_closes_everything() -> None:
    answering = FakeAnswering()
    with ChatLine(answering) as line:
        answer = line.ask([Message("user", "Wait")])
        next(answer)
    assert answering.events == ["opened", "closed", "answer over"]
    answer.close()
