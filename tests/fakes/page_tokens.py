"""Token streams of the fake page gateway: words with a pause between them, like a model's."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from typing import Any

Send = Callable[..., Awaitable[None]]

_WORDS = re.compile(r"\s*\S+\s*$|\s*\S+")


@dataclass
class Speech:
    """How prompts are answered; tests change it while the gateway runs."""

    answer: str = "Streams carry bytes in order. Sockets are their ends."
    gap_s: float = 0.02
    finish_reason: str = "stop"
    error: str | None = None  # title of the problem that answers every prompt
    ends: asyncio.Event = field(default_factory=asyncio.Event)  # cleared: answers never end

    def __post_init__(self) -> None:
        self.ends.set()


class FakeTokenStream:
    """One stream: prompts are answered in parallel, with one rising ``seq`` for all events."""

    def __init__(self, stream: int, speech: Speech, send: Send) -> None:
        self._stream = stream
        self._speech = speech
        self._send = send
        self._seq = 0
        self._is_ending = False
        self._answers: dict[str, asyncio.Task[None]] = {}  # clients keep to max_prompts

    def prompt(self, message: dict[str, Any]) -> None:
        answer = self._answer(message["id"], message)
        self._answers[message["id"]] = asyncio.create_task(answer, name="fake answer")

    async def cancel(self, prompt: str) -> None:
        task = self._answers.pop(prompt, None)
        if task is not None:
            task.cancel()
            await self._settle(prompt, "end", finish_reason="cancelled")

    async def end(self) -> None:
        """No more prompts: ``closed`` follows the last answer."""
        self._is_ending = True
        await self._finish()

    async def stop(self) -> None:
        self.close()
        self._answers.clear()
        await self.end()

    def close(self) -> None:
        for task in self._answers.values():
            task.cancel()

    async def _finish(self) -> None:
        if self._is_ending and not self._answers:
            counts = dict.fromkeys(("accepted", "results", "dropped", "errors", "cancelled"), 0)
            await self._send(type="closed", stream=self._stream, **counts)

    async def _answer(self, prompt: str, message: dict[str, Any]) -> None:
        speech = self._speech
        if speech.error is not None:
            problem = {"type": "urn:clawstream:problem:x", "title": speech.error, "status": 422}
            await self._settle(prompt, "error", problem=problem, retryable=False)
            return
        limit = message.get("sampling", {}).get("max_tokens", 10_000)
        words = _WORDS.findall(speech.answer)
        for word in words[:limit]:
            await asyncio.sleep(speech.gap_s)
            await self._tell("token", prompt, text=word)
        await speech.ends.wait()
        num_tokens = min(limit, len(words))
        usage = {
            "prompt_tokens": 21,
            "completion_tokens": num_tokens,
            "total_tokens": 21 + num_tokens,
            "cached_tokens": 16,
        }
        reason = "length" if limit < len(words) else speech.finish_reason
        await self._settle(prompt, "end", finish_reason=reason, usage=usage)

    async def _settle(self, prompt: str, kind: str, **content: Any) -> None:
        await self._tell(kind, prompt, **content)
        self._answers.pop(prompt, None)
        await self._finish()

    async def _tell(self, kind: str, prompt: str, **content: Any) -> None:
        seq, self._seq = self._seq, self._seq + 1
        await self._send(type=kind, stream=self._stream, id=prompt, seq=seq, **content)
