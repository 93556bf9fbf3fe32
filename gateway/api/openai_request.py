"""From the body of an OpenAI-compatible request to a prompt, or to the member that is in the way.

What changes the answer and is not supported is refused by name, never ignored; members without
meaning here (``user``, ``metadata``, unknown ones) are ignored.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, TypeVar

import msgspec
from aiohttp import web

from engine.llm.request import PromptPayload, Sampling
from engine.types import Priority
from gateway.api.openai_errors import BadParameter
from gateway.config_sections import LimitsConfig
from gateway.errors import ProblemKind, RequestProblem
from gateway.session.text_options import PACES

INLINE_BYTES = 64 * 1024  # a larger body is parsed on another thread
OVERHEAD_BYTES = 64 * 1024  # of a body beside its prompt

T = TypeVar("T")

# Member -> values that ask for nothing; None always does.
_REFUSED: Mapping[str, tuple[Any, ...]] = {
    "audio": (),
    "best_of": (1,),
    "chat_template": (),
    "echo": (False,),
    "frequency_penalty": (0,),
    "function_call": ("none", "auto"),
    "functions": ([],),
    "guided_choice": (),
    "guided_grammar": (),
    "guided_json": (),
    "guided_regex": (),
    "length_penalty": (1,),
    "logit_bias": ({},),
    "logprobs": (False,),
    "min_tokens": (0,),
    "modalities": (["text"],),
    "n": (1,),
    "prediction": (),
    "presence_penalty": (0,),
    "prompt_logprobs": (False,),
    "response_format": ({"type": "text"},),
    "stop_token_ids": ([],),
    "store": (False,),
    "structured_outputs": (),
    "suffix": ("",),
    "tool_choice": ("none", "auto"),
    "tools": ([],),
    "top_logprobs": (0,),
    "use_beam_search": (False,),
    "web_search_options": (),
}
_PATH = re.compile(r" - at `\$\.?(.*)`$")


class StreamOptions(msgspec.Struct, frozen=True, kw_only=True):
    """``continuous_usage_stats`` is accepted: the counts come with the last chunk all the same."""

    include_usage: bool | None = None
    continuous_usage_stats: bool | None = None


class Body(msgspec.Struct, frozen=True, kw_only=True):
    """The members that both kinds of request share; ranges are those of ``Sampling``."""

    model: str
    stream: bool | None = None
    stream_options: StreamOptions | None = None
    max_tokens: int | None = None
    temperature: float | None = None
    top_p: float | None = None
    top_k: int | None = None
    min_p: float | None = None
    repetition_penalty: float | None = None
    seed: int | None = None
    stop: str | list[str] | None = None
    ignore_eos: bool | None = None
    priority: str | None = None
    deadline_ms: float | None = None
    pace: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class PromptRequest:
    """A request that can be served, as far as the gateway can tell; ``payload`` is JSON."""

    model: str
    payload: bytes
    is_stream: bool
    include_usage: bool
    priority: Priority
    deadline_ms: float | None
    pace: str | None  # of an event stream


async def read_body(request: web.Request, limits: LimitsConfig, max_bytes: int) -> bytes:
    """The whole body.

    Raises:
        RequestProblem: it is too large (by its header, before anything is read) or too slow.
    """
    too_large = RequestProblem(
        ProblemKind.FRAME_TOO_LARGE, f"a request has at most {max_bytes} bytes"
    )
    if request.content_length is not None and request.content_length > max_bytes:
        raise too_large
    body = bytearray()
    try:
        async with asyncio.timeout(limits.assembly_timeout_s):
            async for chunk in request.content.iter_any():
                body += chunk
                if len(body) > max_bytes:
                    raise too_large
    except TimeoutError:
        detail = f"the body did not arrive in {limits.assembly_timeout_s:g} s"
        raise RequestProblem(ProblemKind.TIMEOUT, detail) from None
    return bytes(body)


async def parse(body: bytes, read: Callable[[bytes], PromptRequest]) -> PromptRequest:
    """``read`` the body, off the loop when that takes long."""
    return read(body) if len(body) <= INLINE_BYTES else await asyncio.to_thread(read, body)


def decode(body: bytes, body_type: type[T]) -> T:
    """The body as ``body_type``, without members that are refused.

    Raises:
        RequestProblem: it is not JSON, or a member is not possible.
    """
    try:
        members = msgspec.json.decode(body)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        reason = str(error).removeprefix("JSON is malformed: ")  # of a message that is malformed
        raise RequestProblem(ProblemKind.INVALID_MESSAGE, f"not JSON: {reason}") from None
    if not isinstance(members, dict):
        raise RequestProblem(ProblemKind.INVALID_MESSAGE, "the body is no JSON object")
    for name, neutral in _REFUSED.items():
        value = members.get(name)
        if value is not None and not _asks_for_nothing(value, neutral):
            raise BadParameter(name, f"{name} is not supported")
    return _converted(members, body_type)


def _asks_for_nothing(value: Any, neutral: tuple[Any, ...]) -> bool:
    # To Python 0 is False, but as ``logprobs`` of a completion it asks for something.
    is_flag = isinstance(value, bool)
    return any(value == other and is_flag == isinstance(other, bool) for other in neutral)


def make_request(body: Body, *, max_tokens: int | None, **prompt: Any) -> PromptRequest:
    """``prompt`` is ``messages`` or ``prompt`` of ``PromptPayload``, in plain types.

    Raises:
        BadParameter: a value is out of range.
    """
    if body.pace is not None and body.pace not in PACES:
        raise BadParameter("pace", f"pace must be one of {', '.join(PACES)}")
    payload = _converted({**prompt, "sampling": _sampling(body, max_tokens)}, PromptPayload)
    options = body.stream_options
    return PromptRequest(
        model=body.model,
        payload=msgspec.json.encode(payload),
        is_stream=bool(body.stream),
        include_usage=options is not None and bool(options.include_usage),
        priority=_priority(body.priority),
        deadline_ms=body.deadline_ms,
        pace=body.pace,
    )


def _sampling(body: Body, max_tokens: int | None) -> Sampling:
    stop = [body.stop] if isinstance(body.stop, str) else body.stop
    members = {
        "temperature": body.temperature,
        "top_p": body.top_p,
        "top_k": 0 if body.top_k == -1 else body.top_k,  # how other servers spell "off"
        "min_p": body.min_p,
        "repetition_penalty": body.repetition_penalty,
        "seed": body.seed,
        "max_tokens": max_tokens,
        "stop": stop,
        "ignore_eos": body.ignore_eos,
    }
    return _converted({k: v for k, v in members.items() if v is not None}, Sampling)


def _priority(name: str | None) -> Priority:
    try:
        return Priority.STANDARD if name is None else Priority(name)
    except ValueError:
        known = ", ".join(member.value for member in Priority)
        raise BadParameter("priority", f"priority must be one of {known}") from None


def _converted(members: object, to: type[T]) -> T:
    try:
        return msgspec.convert(members, to)
    except msgspec.ValidationError as error:
        text = str(error)
        at = _PATH.search(text)
        param = None if at is None else at.group(1) or None
        detail = text if at is None else text[: at.start()]
        raise BadParameter(param, f"{param}: {detail}" if param else detail) from None
