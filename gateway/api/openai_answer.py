"""What both OpenAI-compatible paths answer, in common."""

from __future__ import annotations

from typing import Protocol

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


class AnswerShape(Protocol):
    """Makes the JSON of one answer: chunks of a stream, or the whole."""

    def chunk(self, text: str | None, finish_reason: str | None) -> bytes:
        """New text, the end, or both."""

    def usage_chunk(self, usage: Usage) -> bytes:
        """The chunk without choices that ends a stream with ``include_usage``."""

    def whole(self, text: str, finish_reason: str, usage: Usage) -> bytes:
        """The answer in one piece."""


def usage_body(usage: Usage) -> UsageBody:
    return UsageBody(
        prompt_tokens=usage.prompt_tokens,
        completion_tokens=usage.completion_tokens,
        total_tokens=usage.total_tokens,
        prompt_tokens_details=PromptTokensDetails(cached_tokens=usage.cached_tokens),
    )
