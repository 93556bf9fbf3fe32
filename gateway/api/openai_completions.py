"""``/v1/completions``: its body and its answers."""

from __future__ import annotations

import msgspec
from msgspec import UNSET, UnsetType

from gateway.api.openai_answer import Ending, UsageBody, usage_body
from gateway.api.openai_errors import BadParameter
from gateway.api.openai_request import Body, PromptRequest, decode, make_request

ID_PREFIX = "cmpl-"
DEFAULT_MAX_TOKENS = 16  # the API's own default, for this path alone


class CompletionBody(Body, frozen=True, kw_only=True):
    """The request: one text, or the token ids of one."""

    prompt: str | list[str | int | list[int]]


def read_completion(body: bytes) -> PromptRequest:
    """Raises RequestProblem."""
    request = decode(body, CompletionBody)
    max_tokens = DEFAULT_MAX_TOKENS if request.max_tokens is None else request.max_tokens
    return make_request(request, max_tokens=max_tokens, prompt=_prompt(request.prompt))


def _prompt(prompt: str | list[str | int | list[int]]) -> str | list[int]:
    if isinstance(prompt, str):
        return prompt
    ids = [token for token in prompt if isinstance(token, int)]
    if ids and len(ids) == len(prompt):
        return ids
    if len(prompt) != 1 or ids:
        raise BadParameter("prompt", "prompt: one per request")
    only = prompt[0]
    assert not isinstance(only, int)
    return only


class _Choice(msgspec.Struct, frozen=True, kw_only=True):
    index: int = 0
    text: str
    logprobs: None = None
    finish_reason: str | None


class _Completion(msgspec.Struct, frozen=True, kw_only=True):
    id: str
    object: str = "text_completion"
    created: int
    model: str
    choices: list[_Choice]
    usage: UsageBody | None = None
    system_fingerprint: str | UnsetType = UNSET


class CompletionShape:
    """Chunks and the whole have one shape."""

    def __init__(self, answer_id: str, created: int, model: str) -> None:
        self._id, self._created, self._model = answer_id, created, model

    def chunk(self, text: str | None, ending: Ending | None) -> bytes:
        finish_reason = None if ending is None else ending.finish_reason
        return self._encode([_Choice(text=text or "", finish_reason=finish_reason)], ending)

    def usage_chunk(self, ending: Ending) -> bytes:
        return self._encode([], ending, usage_body(ending.usage))

    def whole(self, text: str, ending: Ending) -> bytes:
        choice = _Choice(text=text, finish_reason=ending.finish_reason)
        return self._encode([choice], ending, usage_body(ending.usage))

    def _encode(
        self, choices: list[_Choice], ending: Ending | None, usage: UsageBody | None = None
    ) -> bytes:
        completion = _Completion(
            id=self._id,
            created=self._created,
            model=self._model,
            choices=choices,
            usage=usage,
            system_fingerprint=UNSET if ending is None else ending.fingerprint,
        )
        return msgspec.json.encode(completion)
