"""``/v1/chat/completions``: its body and its answers."""

from __future__ import annotations

from typing import Any

import msgspec
from msgspec import UNSET, UnsetType

from gateway.api.openai_answer import Ending, UsageBody, usage_body
from gateway.api.openai_errors import BadParameter
from gateway.api.openai_request import Body, PromptRequest, decode, make_request

ID_PREFIX = "chatcmpl-"
# The newer name of the same role, which chat templates do not know.
_ROLES = {"developer": "system"}


class Part(msgspec.Struct, frozen=True, kw_only=True):
    """One part of a message's content."""

    type: str
    text: str | None = None


class Message(msgspec.Struct, frozen=True, kw_only=True):
    """One turn; ``content`` is a text, or texts in a list."""

    role: str
    content: str | list[Part] | None = None
    tool_calls: Any = None


class ChatBody(Body, frozen=True, kw_only=True):
    """The request; ``max_completion_tokens`` is the newer name of ``max_tokens`` and wins."""

    messages: list[Message]
    max_completion_tokens: int | None = None


def read_chat(body: bytes) -> PromptRequest:
    """Raises RequestProblem."""
    request = decode(body, ChatBody)
    if not request.messages:
        raise BadParameter("messages", "messages: at least one is needed")
    newer = request.max_completion_tokens
    return make_request(
        request,
        max_tokens=request.max_tokens if newer is None else newer,
        messages=[_turn(message, index) for index, message in enumerate(request.messages)],
    )


def _turn(message: Message, index: int) -> dict[str, str]:
    at = f"messages[{index}]"
    if message.tool_calls:
        raise BadParameter(f"{at}.tool_calls", "tool_calls is not supported")
    if message.content is None:
        raise BadParameter(f"{at}.content", f"{at}.content: a text is needed")
    role = _ROLES.get(message.role, message.role)
    if isinstance(message.content, str):
        return {"role": role, "content": message.content}
    texts = []
    for part in message.content:
        if part.type != "text" or part.text is None:
            raise BadParameter(f"{at}.content", f"{at}.content: only parts of type text are read")
        texts.append(part.text)
    return {"role": role, "content": "\n".join(texts)}


class _Delta(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    role: str | UnsetType = UNSET
    content: str | UnsetType = UNSET


class _ChunkChoice(msgspec.Struct, frozen=True, kw_only=True):
    index: int = 0
    delta: _Delta
    logprobs: None = None
    finish_reason: str | None


class _Chunk(msgspec.Struct, frozen=True, kw_only=True):
    id: str
    object: str = "chat.completion.chunk"
    created: int
    model: str
    choices: list[_ChunkChoice]
    usage: UsageBody | None = None
    system_fingerprint: str | UnsetType = UNSET


class _Turn(msgspec.Struct, frozen=True, kw_only=True):
    role: str = "assistant"
    content: str
    refusal: None = None


class _Choice(msgspec.Struct, frozen=True, kw_only=True):
    index: int = 0
    message: _Turn
    logprobs: None = None
    finish_reason: str


class _Completion(msgspec.Struct, frozen=True, kw_only=True):
    id: str
    object: str = "chat.completion"
    created: int
    model: str
    choices: list[_Choice]
    usage: UsageBody
    system_fingerprint: str


class ChatShape:
    """Clients count chunks: the role comes with the first token, the end with the last."""

    def __init__(self, answer_id: str, created: int, model: str) -> None:
        self._id, self._created, self._model = answer_id, created, model
        self._is_first = True

    def chunk(self, text: str | None, ending: Ending | None) -> bytes:
        role = "assistant" if self._is_first else UNSET
        delta = _Delta(role=role, content=UNSET if text is None else text)
        self._is_first = False
        finish_reason = None if ending is None else ending.finish_reason
        return self._encode([_ChunkChoice(delta=delta, finish_reason=finish_reason)], ending)

    def usage_chunk(self, ending: Ending) -> bytes:
        return self._encode([], ending, usage_body(ending.usage))

    def whole(self, text: str, ending: Ending) -> bytes:
        choice = _Choice(message=_Turn(content=text), finish_reason=ending.finish_reason)
        completion = _Completion(
            id=self._id,
            created=self._created,
            model=self._model,
            choices=[choice],
            usage=usage_body(ending.usage),
            system_fingerprint=ending.fingerprint,
        )
        return msgspec.json.encode(completion)

    def _encode(
        self, choices: list[_ChunkChoice], ending: Ending | None, usage: UsageBody | None = None
    ) -> bytes:
        chunk = _Chunk(
            id=self._id,
            created=self._created,
            model=self._model,
            choices=choices,
            usage=usage,
            system_fingerprint=UNSET if ending is None else ending.fingerprint,
        )
        return msgspec.json.encode(chunk)
