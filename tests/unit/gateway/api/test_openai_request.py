"""From bodies to prompts; the refusals by name are in tests/integration/test_gateway_chat.py."""

from __future__ import annotations

import json
from typing import Any

import msgspec
import pytest

from engine.llm.request import PromptPayload
from engine.types import Priority
from gateway.api.openai_chat import read_chat
from gateway.api.openai_completions import read_completion
from gateway.api.openai_errors import BadParameter
from gateway.api.openai_request import PromptRequest
from gateway.errors import ProblemKind, RequestProblem

pytestmark = pytest.mark.unit


def chat(**members: Any) -> PromptRequest:
    body = {"model": "m", "messages": [{"role": "user", "content": "Hi"}], **members}
    return read_chat(json.dumps(body).encode())


def completion(**members: Any) -> PromptRequest:
    return read_completion(json.dumps({"model": "m", "prompt": "Hi", **members}).encode())


def payload(request: PromptRequest) -> PromptPayload:
    return msgspec.json.decode(request.payload, type=PromptPayload)


def test_the_least_that_can_be_asked() -> None:
    request = chat()
    assert request.model == "m"
    assert not request.is_stream
    assert not request.include_usage
    assert request.priority is Priority.STANDARD
    assert request.deadline_ms is None
    assert payload(request).sampling.max_tokens is None
    assert payload(request).sampling.temperature == 1.0


def test_null_is_absent_everywhere() -> None:
    names = ("stream", "stream_options", "max_tokens", "temperature", "top_p", "top_k", "min_p")
    names += ("repetition_penalty", "seed", "stop", "ignore_eos", "priority", "deadline_ms", "pace")
    names += ("n", "logprobs", "tools", "response_format", "logit_bias", "presence_penalty")
    assert chat(**dict.fromkeys(names)) == chat()


def test_members_that_ask_for_nothing_are_accepted() -> None:
    request = chat(
        n=1,
        logprobs=False,
        tools=[],
        tool_choice="none",
        presence_penalty=0.0,
        frequency_penalty=0,
        logit_bias={},
        response_format={"type": "text"},
        modalities=["text"],
        user="me",
        anything={"else": [1]},
    )
    assert request == chat()


def test_zero_logprobs_ask_for_something() -> None:
    with pytest.raises(BadParameter, match="logprobs"):
        completion(logprobs=0)


def test_the_newer_name_of_the_limit_wins() -> None:
    assert payload(chat(max_tokens=5)).sampling.max_tokens == 5
    assert payload(chat(max_tokens=5, max_completion_tokens=6)).sampling.max_tokens == 6


def test_completions_have_the_default_limit_of_the_api() -> None:
    assert payload(completion()).sampling.max_tokens == 16
    assert payload(completion(max_tokens=100)).sampling.max_tokens == 100


@pytest.mark.parametrize(
    ("prompt", "expected"),
    [("Hi", "Hi"), ([1, 2], (1, 2)), (["Hi"], "Hi"), ([[1, 2]], (1, 2)), ("", "")],
)
def test_a_completion_has_one_prompt(prompt: Any, expected: Any) -> None:
    assert payload(completion(prompt=prompt)).prompt == expected


@pytest.mark.parametrize("prompt", [["a", "b"], [[1], [2]], [], [1, "a"], [[1], 2]])
def test_several_prompts_are_refused(prompt: Any) -> None:
    with pytest.raises(BadParameter) as refused:
        completion(prompt=prompt)
    assert refused.value.param == "prompt"


@pytest.mark.parametrize("body", [b"", b"{", b"[]", b"1", b"\xff\xfe", b"[" * 10_000])
def test_what_is_no_object_is_malformed(body: bytes) -> None:
    with pytest.raises(RequestProblem) as refused:
        read_chat(body)
    assert refused.value.kind is ProblemKind.INVALID_MESSAGE


def test_a_wrong_value_is_named_with_its_place() -> None:
    with pytest.raises(BadParameter) as refused:
        chat(messages=[{"role": "user", "content": "a"}, {"role": 5, "content": "b"}])
    assert refused.value.param == "messages[1].role"
    assert "Expected `str`, got `int`" in refused.value.detail
