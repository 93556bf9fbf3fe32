"""The engine contract on the language-model engine without processes, in virtual time."""

from __future__ import annotations

import asyncio
import dataclasses

import pytest
from msgspec.structs import replace

from engine.composite import CompositeEngine
from engine.config import LlmConfig
from engine.llm.client import LlmEngine
from engine.llm.host import HostEvents
from engine.manifest import Manifest
from tests.contract.engine_suite import Built, EngineContract
from tests.fakes.echo_llm import last_words, prompt
from tests.fakes.llm_host import FakeLlmHost

pytestmark = pytest.mark.contract

FAULTY = b'{"messages": 3}'


class TestLlmEngine(EngineContract):
    def build(self) -> Built:
        hosts: list[FakeLlmHost] = []

        def build_host(manifest: Manifest, config: LlmConfig, events: HostEvents) -> FakeLlmHost:
            hosts.append(FakeLlmHost(manifest, config, events))
            return hosts[-1]

        def occupy(seconds: float) -> None:
            hosts[0].block()
            asyncio.get_running_loop().call_later(seconds, hosts[0].unblock)

        return Built(
            engine=LlmEngine({"echo": (Manifest(name="echo"), LlmConfig())}, build_host),
            model="echo",
            expected=last_words,
            occupy=occupy,
            faulty=lambda item: replace(item, payload=FAULTY),
            payload=lambda number: prompt(f"tell me {number}"),
        )


class TestCompositeOfLlmEngine(TestLlmEngine):
    def build(self) -> Built:
        built = super().build()
        return dataclasses.replace(built, engine=CompositeEngine([built.engine]))
