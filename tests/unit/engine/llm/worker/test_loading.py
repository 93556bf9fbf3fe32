"""From a folder to a warm runner."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from engine.config import LlmConfig
from engine.errors import StartupError
from engine.llm.model import LoadedModel, PagedModel, load_model_folder
from engine.llm.step_cost import StepCost, StepShape
from engine.llm.worker.loading import count_blocks, load_model, open_filter
from engine.llm.worker.warm_up import WarmUp
from engine.manifest import Manifest
from tests.fakes.tiny_llm import write_tiny_llm

pytestmark = pytest.mark.unit

CONFIG = LlmConfig(threads=1, weights="fp32", device="cpu", kv_cache_bytes=4 << 20)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_tiny_llm(tmp_path_factory.mktemp("tiny"))


@pytest.fixture(scope="module")
def loaded(folder: Path) -> LoadedModel:
    return load_model_folder(folder, weights="fp32", device="cpu", threads=1, max_seq_length=256)


def test_the_cache_takes_the_memory_that_is_configured(loaded: LoadedModel) -> None:
    block_bytes = loaded.bytes_per_block(16)
    assert count_blocks(loaded, replace(CONFIG, kv_cache_bytes=10 * block_bytes)) == 10


def test_the_cache_is_no_larger_than_the_largest_batch_fills(loaded: LoadedModel) -> None:
    config = replace(CONFIG, kv_cache_bytes=1 << 30, max_batch_size=4)
    assert count_blocks(loaded, config) == 4 * 256 // 16
    assert count_blocks(loaded, replace(config, kv_cache_bytes=0)) == 4 * 256 // 16


def test_a_cache_without_room_for_a_block_is_refused(loaded: LoadedModel) -> None:
    with pytest.raises(StartupError, match="kv_cache_bytes"):
        count_blocks(loaded, replace(CONFIG, kv_cache_bytes=1))


def test_a_bad_filter_is_refused_before_the_model_is_loaded(folder: Path) -> None:
    with pytest.raises(StartupError, match="content filter"):
        load_model(Manifest(name="m"), replace(CONFIG, content_filter=("(",)))
    assert open_filter(CONFIG) is None
    assert open_filter(replace(CONFIG, content_filter=("secret",))) is not None


def test_a_manifest_without_a_folder_is_refused() -> None:
    with pytest.raises(StartupError, match="model"):
        load_model(Manifest(name="m"), CONFIG)


def test_warming_up_teaches_what_steps_cost(loaded: LoadedModel) -> None:
    model = PagedModel(loaded, 64, 16)
    cost = StepCost()
    warm_up = WarmUp(model, loaded.max_seq_length)
    warm_up.learn_costs(cost, max_batch_size=8)
    alone = cost.predict(StepShape(num_decodes=1, decode_context=64))
    assert alone > 0.0
    assert cost.predict(StepShape().with_chunk(0, 256)) > alone
    assert warm_up.time_swap_ms() > 0.0


@pytest.mark.parametrize("num_blocks", [1, 3])
def test_warming_up_stays_within_a_tiny_cache(loaded: LoadedModel, num_blocks: int) -> None:
    cost = StepCost()
    WarmUp(PagedModel(loaded, num_blocks, 16), 256).learn_costs(cost, max_batch_size=32)
    assert cost.predict(StepShape(num_decodes=1, decode_context=16)) > 0.0


def test_a_loaded_model_is_ready_and_idle(folder: Path) -> None:
    ready = load_model(Manifest(name="tiny", files={"model": str(folder)}), CONFIG)
    assert (ready.ready.device, ready.ready.weights) == ("cpu", "fp32")
    assert ready.ready.max_seq_length == 2048
    assert ready.runner.is_idle
    assert ready.runner.gauges().blocks_total == ready.ready.num_blocks
    with pytest.raises(ValueError, match="no cheaper weights"):
        ready.runner.use_cheaper(True)


def test_a_model_with_cheaper_weights_is_ready_with_its_usual_ones(folder: Path) -> None:
    config = replace(CONFIG, cheaper_weights="bf16")
    ready = load_model(Manifest(name="tiny", files={"model": str(folder)}), config)
    assert (ready.ready.weights, ready.ready.cheaper_weights) == ("fp32", "bf16")
    assert not ready.runner.is_cheaper
    ready.runner.use_cheaper(True)
    assert ready.runner.is_cheaper
