"""Answers from a gateway, as the chat's connection wants them."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Mapping
from contextlib import aclosing

from gateway.client import Client
from gateway.commands.chat_talk import AnswerEnd, Message


class GatewayAnswers:
    """Asks ``model`` through ``client``, which it opens; ``sampling`` goes with each prompt."""

    def __init__(self, client: Client, model: str, sampling: Mapping[str, float | int]) -> None:
        self._client = client
        self._model = model
        self._sampling = sampling

    async def open(self) -> None:
        """Raises ConnectError."""
        await self._client.__aenter__()

    async def ask(self, messages: list[Message]) -> AsyncGenerator[str | AnswerEnd, None]:
        """Raises ValueError (the prompt is too long), StreamError and ConnectError."""
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
