"""The engine contract on the language-model engine with its real worker and a tiny model."""

from __future__ import annotations

from pathlib import Path

import msgspec
import pytest
from msgspec.structs import replace

from engine.config import LlmConfig
from engine.llm.client import LlmEngine
from engine.llm.request import FinishedAnswer, PromptPayload, Sampling, Usage
from engine.manifest import Manifest
from tests.contract.engine_suite import Built
from tests.contract.process_suite import FAULTY, ProcessContract, stop_workers
from tests.fakes.tiny_llm import write_tiny_llm

pytestmark = pytest.mark.slow

GREEDY = Sampling(temperature=0.0, max_tokens=3, ignore_eos=True)
ANSWER = FinishedAnswer(
    finish_reason="length", usage=Usage(prompt_tokens=4, completion_tokens=3, total_tokens=7)
)


def prompt(number: int) -> bytes:
    payload = PromptPayload(prompt=(1, 2, 3, number % 256), sampling=GREEDY)
    return msgspec.json.encode(payload)


class TestLlmEngineWithTinyModel(ProcessContract):
    folder: Path

    @pytest.fixture(autouse=True)
    def _write_model(self, tmp_path: Path) -> None:
        self.folder = write_tiny_llm(tmp_path / "tiny")

    def build(self) -> Built:
        manifest = Manifest(name="tiny", files={"model": str(self.folder)})
        config = LlmConfig(
            weights="fp32",
            threads=1,
            max_seq_length=256,
            kv_cache_bytes=1 << 20,
            prefix_cache=False,
        )
        return Built(
            engine=LlmEngine({"tiny": (manifest, config)}),
            model="tiny",
            expected=lambda _: msgspec.json.encode(ANSWER),
            occupy=stop_workers,
            faulty=lambda item: replace(item, payload=FAULTY),
            payload=prompt,
        )
