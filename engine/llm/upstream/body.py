"""A prompt as the body of a request to a server with OpenAI's API. Pure."""

from __future__ import annotations

from typing import Any, NamedTuple

import msgspec

from engine.config import UpstreamConfig
from engine.errors import InvalidInput
from engine.llm.request import PromptPayload, Sampling

# Our name -> the server's, for what is not OpenAI's. These are always sent: a server's own
# default (llama.cpp: top_k 40, min_p 0.05) must not replace what the caller asked for.
_EXTRAS: dict[str, dict[str, str]] = {
    "openai": {},
    "vllm": {
        "top_k": "top_k",
        "min_p": "min_p",
        "repetition_penalty": "repetition_penalty",
        "ignore_eos": "ignore_eos",
    },
    "llamacpp": {
        "top_k": "top_k",
        "min_p": "min_p",
        "repetition_penalty": "repeat_penalty",
        "ignore_eos": "ignore_eos",
    },
}
_EXTRA_NAMES = ("top_k", "min_p", "repetition_penalty", "ignore_eos")
_DEFAULTS = Sampling()


class UpstreamRequest(NamedTuple):
    """``path`` is relative to the configured URL."""

    path: str
    body: bytes


def build_request(payload: bytes, config: UpstreamConfig) -> UpstreamRequest:
    """Raises ``InvalidInput``: the payload is not a prompt, or asks for what the server lacks."""
    try:
        prompt = msgspec.json.decode(payload, type=PromptPayload)
    except msgspec.MsgspecError as error:
        raise InvalidInput(f"the prompt: {error}") from None
    sampling = _sampling(prompt.sampling, config.dialect)
    body: dict[str, Any] = {
        "model": config.model,
        "stream": True,
        "stream_options": {"include_usage": True},
        **sampling,
    }
    max_tokens = prompt.sampling.max_tokens
    if prompt.messages is not None:
        if not prompt.messages:
            raise InvalidInput("messages is empty")
        body["messages"] = prompt.messages
        if max_tokens is not None:
            # OpenAI's newer models refuse the old name, other servers may not know the new one.
            is_openai = config.dialect == "openai"
            body["max_completion_tokens" if is_openai else "max_tokens"] = max_tokens
        return UpstreamRequest("/chat/completions", msgspec.json.encode(body))
    if not prompt.prompt:
        raise InvalidInput("the prompt is empty")
    body["prompt"] = prompt.prompt
    # The API's own default for raw prompts is 16 tokens, which nobody expects.
    body["max_tokens"] = config.completion_max_tokens if max_tokens is None else max_tokens
    return UpstreamRequest("/completions", msgspec.json.encode(body))


def _sampling(sampling: Sampling, dialect: str) -> dict[str, Any]:
    options: dict[str, Any] = {"temperature": sampling.temperature, "top_p": sampling.top_p}
    if sampling.seed is not None:
        options["seed"] = sampling.seed
    if sampling.stop:
        options["stop"] = sampling.stop
    known = _EXTRAS[dialect]
    for name in _EXTRA_NAMES:
        value = getattr(sampling, name)
        if name in known:
            options[known[name]] = value
        elif value != getattr(_DEFAULTS, name):
            raise InvalidInput(f"the model's server does not support {name}")
    return options
