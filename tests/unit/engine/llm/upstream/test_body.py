from __future__ import annotations

from typing import Any

import msgspec
import pytest

from engine.config import UpstreamConfig
from engine.errors import InvalidInput
from engine.llm.request import ChatMessage, PromptPayload, Sampling
from engine.llm.upstream.body import build_request

pytestmark = pytest.mark.unit

CHAT = (ChatMessage(role="user", content="Hi 🙂"),)


def build(dialect: str = "openai", **prompt: Any) -> tuple[str, dict[str, Any]]:
    config = UpstreamConfig(url="http://host/v1", model="big", dialect=dialect)
    request = build_request(msgspec.json.encode(PromptPayload(**prompt)), config)
    return request.path, msgspec.json.decode(request.body)


def test_messages_become_a_chat() -> None:
    path, body = build(messages=CHAT, sampling=Sampling(temperature=0.0, seed=7, stop=("\n",)))
    assert path == "/chat/completions"
    assert body == {
        "model": "big",
        "messages": [{"role": "user", "content": "Hi 🙂"}],
        "stream": True,
        "stream_options": {"include_usage": True},
        "temperature": 0.0,
        "top_p": 1.0,
        "seed": 7,
        "stop": ["\n"],
    }


@pytest.mark.parametrize("prompt", ["Once upon", (1, 2, 3)])
def test_a_raw_prompt_becomes_a_completion_of_a_stated_length(prompt: Any) -> None:
    path, body = build(prompt=prompt)
    assert path == "/completions"
    assert body["prompt"] == (list(prompt) if isinstance(prompt, tuple) else prompt)
    assert body["max_tokens"] == 1024
    assert build(prompt=prompt, sampling=Sampling(max_tokens=5))[1]["max_tokens"] == 5


@pytest.mark.parametrize(
    ("dialect", "name"),
    [("openai", "max_completion_tokens"), ("vllm", "max_tokens"), ("llamacpp", "max_tokens")],
)
def test_the_length_of_a_chat_has_each_servers_name(dialect: str, name: str) -> None:
    _, body = build(dialect, messages=CHAT, sampling=Sampling(max_tokens=5))
    assert body[name] == 5
    assert sum("max_" in key for key in body) == 1


@pytest.mark.parametrize(
    "option", [{"top_k": 5}, {"min_p": 0.1}, {"repetition_penalty": 1.1}, {"ignore_eos": True}]
)
def test_what_the_server_does_not_know_is_refused(option: dict[str, Any]) -> None:
    with pytest.raises(InvalidInput, match=f"does not support {next(iter(option))}"):
        build(messages=CHAT, sampling=Sampling(**option))
    build("vllm", messages=CHAT, sampling=Sampling(**option))


def test_what_the_server_knows_is_always_sent() -> None:
    _, body = build("llamacpp", prompt="x")
    assert (body["top_k"], body["min_p"], body["repeat_penalty"], body["ignore_eos"]) == (
        0,
        0.0,
        1.0,
        False,
    )


@pytest.mark.parametrize(
    "payload",
    [b"", b"{", b"{}", b'{"prompt": ""}', b'{"prompt": []}', b'{"messages": []}', b'{"prompt": 1}',
     b'{"prompt": "x", "sampling": {"mirostat": 2}}', b'{"prompt": "x", "sampling": {"top_p": 7}}'],
)  # fmt: skip
def test_what_is_no_prompt_is_refused(payload: bytes) -> None:
    with pytest.raises(InvalidInput):
        build_request(payload, UpstreamConfig(url="http://host/v1", model="big"))
