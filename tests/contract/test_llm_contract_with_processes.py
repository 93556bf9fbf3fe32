"""The engine contract on the language-model engine with a worker process, in real time."""

from __future__ import annotations

import functools

import pytest
from msgspec.structs import replace

from engine.config import LlmConfig
from engine.llm.client import LlmEngine
from engine.llm.host import LlmHost
from engine.manifest import Manifest
from tests.contract.engine_suite import Built
from tests.contract.process_suite import FAULTY, ProcessContract, stop_workers
from tests.fakes.echo_llm import last_words, prompt

pytestmark = pytest.mark.integration


class TestLlmEngineWithFakeWorker(ProcessContract):
    def build(self) -> Built:
        factory = functools.partial(LlmHost, module="tests.fakes.llm_worker")
        return Built(
            engine=LlmEngine({"echo": (Manifest(name="echo"), LlmConfig())}, factory),
            model="echo",
            expected=last_words,
            occupy=stop_workers,
            faulty=lambda item: replace(item, payload=FAULTY),
            payload=lambda number: prompt(f"tell me {number}"),
        )
