"""From a manifest to a warm runner."""

from __future__ import annotations

import logging
import time
from dataclasses import dataclass, replace
from pathlib import Path

from engine.config import LlmConfig
from engine.errors import StartupError
from engine.llm.blocks import BlockPool
from engine.llm.messages import LlmReady
from engine.llm.model import LoadedModel, PagedModel, load_model_folder
from engine.llm.runner import Runner
from engine.llm.scheduler import Scheduler
from engine.llm.scheduling.plan import SchedulerConfig
from engine.llm.step_cost import StepCost
from engine.llm.text.content_filter import ContentFilter, FilterAction
from engine.llm.text.tokenizer import Tokenizer
from engine.llm.worker.warm_up import WarmUp
from engine.manifest import Manifest

logger = logging.getLogger(__name__)

SWAPPED_SHARE = 4  # host memory for preempted sequences: a quarter of the cache's size


@dataclass(frozen=True, slots=True, kw_only=True)
class Loaded:
    """What a worker's stages need."""

    runner: Runner
    tokenizer: Tokenizer
    content_filter: ContentFilter | None
    ready: LlmReady


def load_model(manifest: Manifest, config: LlmConfig) -> Loaded:
    """Load and warm the model in the folder ``manifest.files["model"]``.

    Raises:
        StartupError: it cannot be served so; the text says why and what to do.
    """
    began = time.monotonic()
    content_filter = open_filter(config)
    if "model" not in manifest.files:
        raise StartupError(f"the manifest of {manifest.name!r} names no folder: files.model")
    folder = Path(manifest.files["model"])
    tokenizer = Tokenizer(folder)
    loaded = load_model_folder(
        folder,
        weights=config.weights,
        cheaper_weights=config.cheaper_weights,
        device=config.device,
        threads=config.threads,
        max_seq_length=config.max_seq_length,
    )
    num_blocks = count_blocks(loaded, config)
    model = PagedModel(
        loaded, num_blocks, config.cache_block_size, fused_attention=config.fused_attention
    )
    cost = StepCost()
    warm_up = WarmUp(model, loaded.max_seq_length)
    warm_up.learn_costs(cost, config.max_batch_size)
    if loaded.cheaper is not None:
        warm_up.learn_cheaper_costs(cost, config.max_batch_size)
    scheduling = SchedulerConfig.from_llm_config(
        replace(config, max_seq_length=loaded.max_seq_length),
        swap_ms_per_block=warm_up.time_swap_ms(),
        max_swapped_blocks=num_blocks // SWAPPED_SHARE,
    )
    pool = BlockPool(num_blocks, config.cache_block_size, prefix_cache=config.prefix_cache)
    runner = Runner(model, Scheduler(scheduling, pool, cost), tokenizer.eos_ids)
    ready = LlmReady(
        device=str(loaded.device),
        weights=loaded.weights,
        num_blocks=num_blocks,
        block_size=config.cache_block_size,
        max_seq_length=loaded.max_seq_length,
        vocabulary=model.vocabulary,
        cheaper_weights=config.cheaper_weights,
    )
    logger.info("ready after %.1f s: %s", time.monotonic() - began, ready)
    return Loaded(runner=runner, tokenizer=tokenizer, content_filter=content_filter, ready=ready)


def open_filter(config: LlmConfig) -> ContentFilter | None:
    """The configured filter, None without patterns."""
    if not config.content_filter:
        return None
    try:
        return ContentFilter(config.content_filter, FilterAction(config.content_filter_action))
    except ValueError as error:
        raise StartupError(str(error)) from None


def count_blocks(loaded: LoadedModel, config: LlmConfig) -> int:
    """As many blocks as the cache's memory holds, but no more than the largest batch of the
    longest sequences fills.

    Raises:
        StartupError: there is no memory for even one sequence of a block.
    """
    block_bytes = loaded.bytes_per_block(config.cache_block_size)
    cache_bytes = config.kv_cache_bytes or loaded.memory_for_cache(config.kv_memory_fraction)
    longest = -(-loaded.max_seq_length // config.cache_block_size)
    num_blocks = min(cache_bytes // block_bytes, config.max_batch_size * longest)
    if num_blocks < 1:
        raise StartupError(
            f"a cache block takes {block_bytes} bytes, but there are only {cache_bytes}: raise "
            "kv_cache_bytes or kv_memory_fraction, or free memory"
        )
    return num_blocks
