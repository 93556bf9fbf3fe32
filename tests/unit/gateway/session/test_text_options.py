from __future__ import annotations

import json
from typing import Any

import msgspec
import pytest
from msgspec import Raw

from engine.llm.request import PromptPayload
from engine.types import Policy, Priority
from gateway.config_sections import TextConfig
from gateway.errors import ProblemKind, RequestProblem
from gateway.session.text_options import TextSettings, read_prompt, read_text_settings
from gateway.wire.messages import Open, Prompt, StreamKind, StreamOptions

pytestmark = pytest.mark.unit


def read(**options: Any) -> TextSettings:
    message = Open(stream=4, model="m", kind=StreamKind.TOKENS, options=StreamOptions(**options))
    return read_text_settings(message, TextConfig(), max_prompts=8, default_pace="steady")


def test_a_stream_of_tokens_is_a_fifo_lane_with_room_for_every_prompt() -> None:
    settings = read(priority="realtime", weight=2.0, version="3")
    assert settings.id == 4
    assert settings.lane.policy is Policy.FIFO
    assert settings.lane.capacity == 8
    assert settings.lane.priority is Priority.REALTIME
    assert (settings.lane.weight, settings.lane.version) == (2.0, "3")
    assert settings.deadline_s == 600.0
    assert read(deadline_ms=250.0).deadline_s == 0.25


def test_the_pace_is_the_prompts_or_its_streams_or_the_default() -> None:
    assert (read().pace, read(pace="off").pace) == ("steady", "off")
    plain = Prompt(stream=4, id="p", prompt="x")
    assert read_prompt(plain, read(pace="off"), TextConfig()).pace == "off"
    own = Prompt(stream=4, id="p", prompt="x", pace="steady")
    assert read_prompt(own, read(pace="off"), TextConfig()).pace == "steady"


def test_timing_is_told_to_those_who_ask() -> None:
    assert (read().timing, read(timing=True).timing) == (False, True)


@pytest.mark.parametrize(
    ("options", "named"),
    [
        ({"codec": "jpeg"}, "codec"),
        ({"max_fps": 5.0}, "max_fps"),
        ({"annotate": "boxes"}, "annotate"),
        ({"policy": "lossless"}, "policy"),
        ({"pace": "fast"}, "pace"),
        ({"weight": 1e9}, "weight"),
        ({"priority": "urgent"}, "priority"),
        ({"deadline_ms": 1e10}, "deadline_ms"),
    ],
)
def test_an_option_that_is_not_possible_is_named(options: dict[str, Any], named: str) -> None:
    with pytest.raises(RequestProblem, match=named) as refused:
        read(**options)
    assert refused.value.kind is ProblemKind.UNSUPPORTED_OPTION


def test_what_a_prompt_asks_passes_on_as_it_came() -> None:
    messages = b'[ {"role":"user", "content":"h\\u00e9"} ]'
    sampling = b'{"temperature":0.50}'
    prompt = Prompt(stream=4, id="p", messages=Raw(messages), sampling=Raw(sampling))
    payload, lane, deadline_s, _ = read_prompt(prompt, read(), TextConfig())
    assert messages in payload
    assert sampling in payload
    decoded = msgspec.json.decode(payload, type=PromptPayload)
    assert decoded.messages is not None
    assert decoded.messages[0].content == "hé"
    assert decoded.sampling.temperature == 0.5
    assert lane == read().lane
    assert deadline_s == 600.0


def test_a_text_is_a_prompt_too_and_nothing_else_is_sent() -> None:
    payload, *_ = read_prompt(Prompt(stream=4, id="p", prompt='a "b"'), read(), TextConfig())
    assert json.loads(payload) == {"prompt": 'a "b"'}


def test_a_prompt_has_a_priority_and_a_deadline_of_its_own() -> None:
    prompt = Prompt(stream=4, id="p", prompt="x", priority="background", deadline_ms=40.0)
    _, lane, deadline_s, _ = read_prompt(prompt, read(weight=2.0), TextConfig())
    assert (lane.priority, lane.weight, deadline_s) == (Priority.BACKGROUND, 2.0, 0.04)


@pytest.mark.parametrize(
    ("members", "named"),
    [
        ({}, "exactly one"),
        ({"prompt": "x", "messages": Raw(b"[]")}, "exactly one"),
        ({"prompt": "x", "pace": "even"}, "pace"),
        ({"prompt": "x", "priority": "high"}, "priority"),
        ({"prompt": "x", "deadline_ms": 1e12}, "deadline_ms"),
    ],
)
def test_a_prompt_that_is_not_possible_says_why(members: dict[str, Any], named: str) -> None:
    with pytest.raises(RequestProblem, match=named):
        read_prompt(Prompt(stream=4, id="p", **members), read(), TextConfig())
