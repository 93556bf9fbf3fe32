"""What both OpenAI-compatible paths answer, in common."""

from __future__ import annotations

from typing import NamedTuple, Protocol

import msgspec

from engine.llm.request import Usage


class PromptTokensDetails(msgspec.Struct, frozen=True, kw_only=True):
    """Where prompt tokens came from."""

    cached_tokens: int


class UsageBody(msgspec.Struct, frozen=True, kw_only=True):
    """``usage`` in OpenAI's shape."""

    prompt_tokens: int
    completion_tokens: int
    total_tokens: int
    prompt_tokens_details: PromptTokensDetails


class Ending(NamedTuple):
    """What is known once an answer is over. ``fingerprint`` is NAME-VERSION of what answered, such
    as ``smollm2-135m-1+int8``: OpenAI's ``system_fingerprint``."""

    finish_reason: str
    usage: Usage
    fingerprint: str


class AnswerShape(Protocol):
    """Makes the JSON of one answer: chunks of a stream, or the whole."""

    def chunk(self, text: str | None, ending: Ending | None) -> bytes:
        """New text, the end, or both."""

    def usage_chunk(self, ending: Ending) -> bytes:
        """The chunk without choices that ends a stream with ``include_usage``."""

    def whole(self, text: str, ending: Ending) -> bytes:
        """The answer in one piece."""


def usage_body(usage: Usage) -> UsageBody:
    return UsageBody(
        prompt_tokens=usage.prompt_tokens,
        completion_tokens=usage.completion_tokens,
        total_tokens=usage.total_tokens,
        prompt_tokens_details=PromptTokensDetails(cached_tokens=usage.cached_tokens),
    )
