"""What a caller asks of a language model: the JSON of an item's payload and options.

Unknown sampling keys are refused, never ignored: a caller who sets something must get it.
"""

from __future__ import annotations

from typing import Annotated

import msgspec
from msgspec import Meta

Probability = Annotated[float, Meta(ge=0.0, le=1.0)]

MAX_STOP_STRINGS = 8
MAX_STOP_CHARS = 256


class ChatMessage(msgspec.Struct, frozen=True, kw_only=True):
    """One turn; ``role`` is what the model's chat template knows."""

    role: str
    content: str


class Sampling(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """How tokens are chosen. ``temperature`` 0 is greedy; ``top_k`` 0, ``top_p`` 1 and ``min_p`` 0
    are off. The order is the field's own: repetition penalty, temperature, top-k, top-p, min-p.

    ``seed`` makes an answer reproducible whatever else runs in its batch. ``max_tokens`` None
    means up to the model's context. Generation ends before a ``stop`` string, at the model's end
    token (unless ``ignore_eos``) or at ``max_tokens``.
    """

    temperature: Annotated[float, Meta(ge=0.0, le=10.0)] = 1.0
    top_k: Annotated[int, Meta(ge=0, le=1_000_000)] = 0
    top_p: Annotated[float, Meta(gt=0.0, le=1.0)] = 1.0
    min_p: Probability = 0.0
    repetition_penalty: Annotated[float, Meta(gt=0.0, le=10.0)] = 1.0
    seed: Annotated[int, Meta(ge=0, le=2**63 - 1)] | None = None
    max_tokens: Annotated[int, Meta(ge=1, le=1_000_000)] | None = None
    stop: Annotated[tuple[str, ...], Meta(max_length=MAX_STOP_STRINGS)] = ()
    ignore_eos: bool = False

    def __post_init__(self) -> None:
        if any(not 0 < len(text) <= MAX_STOP_CHARS for text in self.stop):
            raise ValueError(f"a stop string has 1 to {MAX_STOP_CHARS} characters")


class PromptPayload(msgspec.Struct, frozen=True, kw_only=True):
    """``Item.payload``: exactly one of ``messages`` (chat) and ``prompt`` (text or token ids).

    Decoded by the worker's tokenising threads only: the gateway's loop passes it on as bytes.
    """

    messages: tuple[ChatMessage, ...] | None = None
    prompt: str | tuple[int, ...] | None = None
    sampling: Sampling = Sampling()

    def __post_init__(self) -> None:
        if (self.messages is None) == (self.prompt is None):
            raise ValueError("exactly one of messages and prompt is needed")


class PromptOptions(msgspec.Struct, frozen=True, kw_only=True):
    """``Item.options``: small, read on the loop. ``tenant`` shares time fairly and salts the
    prefix cache, so that no tenant can probe what another one asked."""

    tenant: str = ""


class Usage(msgspec.Struct, frozen=True, kw_only=True):
    """Token counts of a finished answer, in the field's own names."""

    prompt_tokens: int
    completion_tokens: int
    total_tokens: int
    cached_tokens: int = 0


class FinishedAnswer(msgspec.Struct, frozen=True, kw_only=True):
    """``Result.data`` of a language model: ``finish_reason`` is stop, length or content_filter."""

    finish_reason: str
    usage: Usage
