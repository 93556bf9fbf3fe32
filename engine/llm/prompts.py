"""An accepted prompt, from its offer to its one outcome."""

from __future__ import annotations

from dataclasses import dataclass

import msgspec

from engine.errors import InvalidInput
from engine.lane import Entry
from engine.llm.messages import Finish, Submit
from engine.llm.request import FinishedAnswer, PromptOptions, Usage
from engine.types import LaneSpec, Result, Timing

MAX_OPTIONS_BYTES = 4096


@dataclass(slots=True, eq=False, kw_only=True)
class Prompt(Entry):
    """``bound_at`` is when it was sent to the worker; ``first_token_at`` is None before the first
    token reached the stream. From then on it cannot be generated anew."""

    spec: LaneSpec
    tenant: str
    first_token_at: float | None = None

    @property
    def size_bytes(self) -> int:
        return memoryview(self.item.payload).nbytes

    def submit_message(self) -> Submit:
        # The loop's clock is the monotonic one, which all processes of a machine share.
        deadline = self.item.deadline
        return Submit(
            key=self.key,
            payload=bytes(self.item.payload),
            tenant=self.tenant,
            rank=self.spec.priority.rank,
            weight=self.spec.weight,
            arrived_us=round(self.offered_at * 1e6),
            deadline_us=max(1, round(deadline * 1e6)) if deadline is not None else 0,
        )

    def result(self, finish: Finish, model: str, version: str, now: float) -> Result:
        """The answer's end. Its timing: ``queue`` until sent to the worker, ``prepare`` from then
        to the first token, ``run`` from then to the last."""
        usage = Usage(
            prompt_tokens=finish.prompt_tokens,
            completion_tokens=finish.completion_tokens,
            total_tokens=finish.prompt_tokens + finish.completion_tokens,
            cached_tokens=finish.cached_tokens,
        )
        first_token_at = now if self.first_token_at is None else self.first_token_at
        return Result(
            data=msgspec.json.encode(FinishedAnswer(finish_reason=finish.reason, usage=usage)),
            model=model,
            version=version,
            timing=Timing(
                queue=_micros(self.bound_at - self.offered_at),
                prepare=_micros(first_token_at - self.bound_at),
                run=_micros(now - first_token_at),
            ),
        )


def decode_options(options: bytes) -> PromptOptions:
    """Raises ``InvalidInput``; small enough for the event loop."""
    if not options:
        return PromptOptions()
    if len(options) > MAX_OPTIONS_BYTES:
        raise InvalidInput(f"options: {len(options)} bytes, the limit is {MAX_OPTIONS_BYTES}")
    try:
        return msgspec.json.decode(options, type=PromptOptions)
    except msgspec.MsgspecError as error:
        raise InvalidInput(f"options: {error}") from None


def _micros(seconds: float) -> int:
    return max(0, round(seconds * 1e6))
