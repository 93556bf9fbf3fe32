"""A language model without a model: it answers a prompt with the prompt's own words.

Every step gives each running prompt one word. The first word may be an order instead:

``!crash``, ``!crash-at N``   the worker dies at once, or after N words
``!stall``                    the worker says nothing any more
``!hold``                     this prompt is never answered
``!refuse CODE``              it is refused with that code
``!finish REASON DETAIL``     it ends at once with that reason
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import msgspec

from engine.llm.messages import CancelKeys, Finish, Gauges, Refused, Step, StepItem, Submit, Up
from engine.llm.request import FinishedAnswer, PromptPayload, Sampling, Usage

TOKEN = re.compile(r"\S+\s*")


def prompt(text: str, **sampling: Any) -> bytes:
    """An item's payload."""
    return msgspec.json.encode(PromptPayload(prompt=text, sampling=Sampling(**sampling)))


def last_words(payload: bytes) -> bytes:
    """``Result.data`` of the answer to a payload without orders or limits."""
    text = msgspec.json.decode(payload, type=PromptPayload).prompt
    assert isinstance(text, str)
    count = len(TOKEN.findall(text))
    usage = Usage(prompt_tokens=count, completion_tokens=count, total_tokens=2 * count)
    return msgspec.json.encode(FinishedAnswer(finish_reason="stop", usage=usage))


class Crash(Exception):
    """The prompt asked for it."""


class Stall(Exception):
    """The prompt asked for it."""


@dataclass
class _Running:
    words: list[str]
    num_prompt: int
    is_cut: bool
    crash_at: int | None = None
    told: list[str] = field(default_factory=list)


class EchoLlm:
    """One worker's life; ``tell`` gets what it says."""

    def __init__(self, epoch: int, tell: Callable[[Up], None]) -> None:
        self.submitted: list[Submit] = []
        self.cancelled: list[int] = []
        self._epoch = epoch
        self._tell = tell
        self._running: dict[int, _Running] = {}
        self._steps = 0
        self._tokens = 0

    @property
    def is_idle(self) -> bool:
        return not self._running

    def submit(self, submit: Submit) -> None:
        """Raises ``Crash`` and ``Stall`` if the prompt says so."""
        self.submitted.append(submit)
        try:
            payload = msgspec.json.decode(submit.payload, type=PromptPayload)
        except msgspec.MsgspecError as error:
            self._tell(Refused(submit.key, "invalid_input", str(error)))
            return
        assert isinstance(payload.prompt, str)
        words = TOKEN.findall(payload.prompt)
        limit = payload.sampling.max_tokens or len(words)
        running = _Running(words[:limit], len(words), limit < len(words))
        match payload.prompt.split():
            case ["!crash", *_]:
                raise Crash
            case ["!crash-at", count, *_]:
                running.crash_at = int(count)
            case ["!stall", *_]:
                raise Stall
            case ["!hold", *_]:
                return
            case ["!refuse", code, *_]:
                self._tell(Refused(submit.key, code, "as ordered"))
                return
            case ["!finish", reason, *detail]:
                self._tell_finish(submit.key, reason, " ".join(detail))
                return
        self._running[submit.key] = running

    def cancel(self, message: CancelKeys) -> None:
        self.cancelled += message.keys
        for key in message.keys:
            self._running.pop(key, None)

    def step(self) -> None:
        """One word for everybody; raises ``Crash``."""
        items = [self._grow(key, running) for key, running in list(self._running.items())]
        if items:
            self._steps += 1
            self._tell(Step(self._epoch, self._steps, tuple(items)))

    def gauges(self) -> Gauges:
        return Gauges(
            running=len(self._running),
            waiting=0,
            blocks_total=100,
            blocks_owned=len(self._running),
            blocks_cached=0,
            fragmentation=0.25,
            steps=self._steps,
            tokens=self._tokens,
            prompt_tokens=0,
            cached_prompt_tokens=0,
            preemptions=0,
            starvations=0,
            swap_s=0.0,
            queue_p99_s=0.0,
            batch_mean=1.0,
            step_p50_s=0.001,
            step_p99_s=0.002,
        )

    def _grow(self, key: int, running: _Running) -> StepItem:
        if running.crash_at == len(running.told):
            raise Crash
        word = running.words[len(running.told)]
        running.told.append(word)
        self._tokens += 1
        finish = None
        if len(running.told) == len(running.words):
            del self._running[key]
            finish = Finish(
                reason="length" if running.is_cut else "stop",
                prompt_tokens=running.num_prompt,
                completion_tokens=len(running.told),
                cached_tokens=0,
            )
        return StepItem(key, (word,), finish)

    def _tell_finish(self, key: int, reason: str, detail: str) -> None:
        finish = Finish(
            reason=reason, prompt_tokens=1, completion_tokens=0, cached_tokens=0, detail=detail
        )
        self._tell(Step(self._epoch, self._steps, (StepItem(key, (), finish),)))
