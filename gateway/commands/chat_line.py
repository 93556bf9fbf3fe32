"""A connection for a program that reads lines: it lives on a thread of its own, so that pings are
answered and breaks are mended while somebody thinks about the next question."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncGenerator, Coroutine, Generator
from concurrent.futures import Future
from contextlib import aclosing
from queue import SimpleQueue
from types import TracebackType
from typing import Any, Protocol, Self, TypeVar

from gateway.commands.chat_talk import AnswerEnd, Message

_JOIN_S = 15.0  # the client's own closing is bounded below this

_T = TypeVar("_T")


class Answering(Protocol):
    """Who answers: opened on the loop, asked on the loop."""

    async def open(self) -> None: ...

    def ask(self, messages: list[Message]) -> AsyncGenerator[str | AnswerEnd, None]: ...

    async def aclose(self) -> None: ...


class ChatLine:
    """``with ChatLine(answering) as line``: from any one thread, ``line.ask(messages)``.

    What the terminal has not taken yet waits here, at most one answer. Leaving the block closes the
    connection, within seconds.
    """

    def __init__(self, answering: Answering) -> None:
        self._answering = answering
        self._started: Future[asyncio.AbstractEventLoop] = Future()
        self._ended = asyncio.Event()  # touched on the loop only
        self._thread = threading.Thread(target=self._run, name="clawstream chat", daemon=True)

    def __enter__(self) -> Self:
        """Raises what opening raises."""
        self._thread.start()
        try:
            self._call(self._answering.open()).result()
        except BaseException:
            self._stop()
            raise
        return self

    def __exit__(
        self,
        exc_type: type[BaseException] | None,
        exc: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        try:
            self._call(self._answering.aclose()).result(_JOIN_S)
        finally:
            self._stop()

    def ask(self, messages: list[Message]) -> Generator[str | AnswerEnd, None, None]:
        """The pieces of the answer, then its end; closing the generator stops the answer.

        Raises:
            ClientError: there is no answer, or none any more.
        """
        pieces: SimpleQueue[str | AnswerEnd | Exception | None] = SimpleQueue()
        pump = self._call(self._pump(messages, pieces))
        try:
            while (piece := pieces.get()) is not None:
                if isinstance(piece, Exception):
                    raise piece
                yield piece
        finally:
            pump.cancel()  # nothing to cancel when the answer is over

    async def _pump(
        self, messages: list[Message], pieces: SimpleQueue[str | AnswerEnd | Exception | None]
    ) -> None:
        try:
            async with aclosing(self._answering.ask(messages)) as answer:
                async for piece in answer:
                    pieces.put(piece)
        except Exception as error:  # noqa: BLE001 - raised again in the thread that asked
            pieces.put(error)
        else:
            pieces.put(None)

    def _call(self, coroutine: Coroutine[Any, Any, _T]) -> Future[_T]:
        return asyncio.run_coroutine_threadsafe(coroutine, self._started.result())

    def _run(self) -> None:
        asyncio.run(self._live())  # cancels what still runs in the end

    async def _live(self) -> None:
        self._started.set_result(asyncio.get_running_loop())
        await self._ended.wait()

    def _stop(self) -> None:
        self._started.result().call_soon_threadsafe(self._ended.set)
        self._thread.join(_JOIN_S)
