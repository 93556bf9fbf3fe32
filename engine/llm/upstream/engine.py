"""The engine for prompts that another server answers."""

from __future__ import annotations

from collections.abc import Mapping

from engine.config import LlmConfig, UpstreamConfig
from engine.llm.client import LlmEngine
from engine.llm.host import HostEvents
from engine.llm.upstream.host import UpstreamHost
from engine.manifest import Manifest


class UpstreamEngine(LlmEngine):
    """Any server with OpenAI's API (vLLM, SGLang, llama.cpp, ...) behind the engine's boundary.

    The door is the one of our own language models, so lanes, deadlines, cancels and receipts are
    the same; only the worker behind it is a server elsewhere. A ``Progress`` is a chunk of the
    server's stream, which may be several tokens.
    """

    def __init__(self, models: Mapping[str, UpstreamConfig]) -> None:
        def build_host(manifest: Manifest, config: LlmConfig, events: HostEvents) -> UpstreamHost:
            return UpstreamHost(manifest.name, models[manifest.name], events)

        doors = {name: _door_of(name, config) for name, config in models.items()}
        super().__init__(doors, build_host)


def _door_of(name: str, config: UpstreamConfig) -> tuple[Manifest, LlmConfig]:
    """What the door needs to know; the rest of ``LlmConfig`` is about a worker."""
    limits = LlmConfig(max_waiting=config.max_waiting, max_prompt_bytes=config.max_prompt_bytes)
    return Manifest(name=name, version=config.version), limits
