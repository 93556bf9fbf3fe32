"""Answers from a gateway, as the chat's connection wants them."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Callable, Mapping
from contextlib import aclosing

from gateway.client import Client, StreamError
from gateway.commands.chat_talk import AnswerEnd, Message

WAIT_S = 300.0  # a gateway gives a language model so long to start, if not told otherwise
_ASK_AGAIN_S = 1.0
_UNAVAILABLE = "urn:clawstream:problem:unavailable"


class GatewayAnswers:
    """Asks ``model`` through ``client``, which it opens; ``sampling`` goes with each prompt.

    While the model cannot serve, because it is starting or starting anew, the question is asked
    again every second for up to ``WAIT_S``; ``on_wait`` is told the reason, once a question.
    """

    def __init__(
        self,
        client: Client,
        model: str,
        sampling: Mapping[str, float | int],
        on_wait: Callable[[str], None],
    ) -> None:
        self._client = client
        self._model = model
        self._sampling = sampling
        self._on_wait = on_wait

    async def open(self) -> None:
        """Raises ConnectError."""
        await self._client.__aenter__()

    async def ask(self, messages: list[Message]) -> AsyncGenerator[str | AnswerEnd, None]:
        """Raises ValueError (the prompt is too long), StreamError and ConnectError."""
        loop = asyncio.get_running_loop()
        asked_at = loop.time()
        has_begun = is_waiting = False
        while True:
            try:
                async with aclosing(self._ask_once(messages)) as answer:
                    async for piece in answer:
                        has_begun = True
                        yield piece
                return
            except StreamError as error:
                if has_begun or not _is_unavailable(error) or loop.time() > asked_at + WAIT_S:
                    raise
                if not is_waiting:
                    self._on_wait(str(error))
                    is_waiting = True
            await asyncio.sleep(_ASK_AGAIN_S)

    async def _ask_once(self, messages: list[Message]) -> AsyncGenerator[str | AnswerEnd, None]:
        answer = self._client.stream_chat(self._model, messages, sampling=self._sampling)
        async with aclosing(aiter(answer)) as events:
            async for event in events:
                if event.finish_reason is None:
                    yield event.text
                    continue
                usage = event.usage
                yield AnswerEnd(
                    finish_reason=event.finish_reason,
                    prompt_tokens=None if usage is None else usage.prompt_tokens,
                    completion_tokens=None if usage is None else usage.completion_tokens,
                )

    async def aclose(self) -> None:
        await self._client.aclose()


def _is_unavailable(error: StreamError) -> bool:
    return error.problem is not None and error.problem.type == _UNAVAILABLE
