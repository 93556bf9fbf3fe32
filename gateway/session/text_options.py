"""Reads the options of a stream of tokens, and those of each prompt on it."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import NamedTuple

import msgspec
from msgspec import UNSET, UnsetType

from engine.types import LaneSpec, Policy, Priority
from gateway.config_sections import TextConfig
from gateway.errors import ProblemKind, RequestProblem
from gateway.session.options import check_weight, one_of, unsupported
from gateway.wire.messages import Open, Prompt, StreamOptions

PACE_STEADY, PACE_OFF = "steady", "off"
PACES = (PACE_STEADY, PACE_OFF)


@dataclass(frozen=True, slots=True, kw_only=True)
class TextSettings:
    """What a stream of tokens was opened with; ``lane``, ``deadline_s`` and ``pace`` are its
    prompts' unless they say otherwise. ``timing``: events tell where their time went."""

    id: int
    lane: LaneSpec
    deadline_s: float
    pace: str
    timing: bool = False


class PromptSettings(NamedTuple):
    """What one prompt asks for; ``deadline_s`` counts from now."""

    payload: bytes
    lane: LaneSpec
    deadline_s: float
    pace: str


class RawPrompt(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """``engine.llm.request.PromptPayload`` as it came: what is raw here is parsed by the worker."""

    messages: msgspec.Raw | UnsetType = UNSET
    prompt: str | UnsetType = UNSET
    sampling: msgspec.Raw | UnsetType = UNSET


def read_text_settings(
    message: Open, config: TextConfig, *, max_prompts: int, default_pace: str
) -> TextSettings:
    """Raises RequestProblem(UNSUPPORTED_OPTION) and names the option."""
    options = message.options
    for name in ("codec", "max_fps", "annotate"):
        if getattr(options, name) is not None:
            raise unsupported(f"{name} is for frames")
    if options.policy not in (StreamOptions().policy, Policy.FIFO.value):
        raise unsupported("policy: prompts are answered first in, first out")
    check_weight(options.weight)
    return TextSettings(
        id=message.stream,
        lane=LaneSpec(
            model=message.model,
            policy=Policy.FIFO,
            capacity=max_prompts,
            weight=options.weight,
            priority=read_priority(options.priority),
            version=options.version,
        ),
        deadline_s=read_deadline_s(options.deadline_ms, config),
        pace=read_pace(options.pace, default_pace),
        timing=options.timing,
    )


def read_prompt(message: Prompt, settings: TextSettings, config: TextConfig) -> PromptSettings:
    """What the prompt asks for, or else its stream.

    Raises:
        RequestProblem: an option is not possible, or there is not exactly one kind of prompt.
    """
    if (message.messages is UNSET) == (message.prompt is UNSET):
        detail = "exactly one of messages and prompt is needed"
        raise RequestProblem(ProblemKind.INVALID_MESSAGE, detail)
    raw = RawPrompt(messages=message.messages, prompt=message.prompt, sampling=message.sampling)
    lane, deadline_s = settings.lane, settings.deadline_s
    if message.priority is not UNSET:
        lane = replace(lane, priority=read_priority(message.priority))
    if message.deadline_ms is not UNSET:
        deadline_s = read_deadline_s(message.deadline_ms, config)
    pace = read_pace(None if message.pace is UNSET else message.pace, settings.pace)
    return PromptSettings(msgspec.json.encode(raw), lane, deadline_s, pace)


def read_priority(priority: str) -> Priority:
    return Priority(one_of("priority", priority, [member.value for member in Priority]))


def read_deadline_s(deadline_ms: float | None, config: TextConfig) -> float:
    """Seconds; the default when None was asked for."""
    if deadline_ms is None:
        return config.deadline_ms / 1e3
    if not 0 < deadline_ms <= config.max_deadline_ms:
        raise unsupported(f"deadline_ms must be above 0, at most {config.max_deadline_ms:g}")
    return deadline_ms / 1e3


def read_pace(pace: str | None, default: str) -> str:
    """One of ``PACES``."""
    return default if pace is None else one_of("pace", pace, PACES)
