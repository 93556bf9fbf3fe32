"""The language model's engine without its processes: the real model, driven step by step.

For benches of the scheduler and for tests of what it computes. Everything is the product's own
code; only the text stage is left out, because token ids are what is compared here.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from engine.config import LlmConfig
from engine.llm.answer import Answer
from engine.llm.blocks import BlockPool
from engine.llm.generation import Generation
from engine.llm.model import PagedModel, load_model_folder
from engine.llm.request import Sampling
from engine.llm.runner import Runner
from engine.llm.scheduler import Scheduler, SchedulerConfig
from engine.llm.sequence import Sequence as TokenSequence
from engine.llm.speculation import LookAhead, NgramIndex
from engine.llm.step_cost import StepCost
from engine.llm.worker.loading import count_blocks
from engine.llm.worker.warm_up import WarmUp
from engine.models.store import ModelStore

MODEL = "smollm2-135m"


class SkippingClock:
    """Time that passes while this process computes, and jumps over waits.

    With one thread on a core of its own that is wall time without its idle parts; on a busy
    machine it is not disturbed by others.
    """

    def __init__(self) -> None:
        self._skipped_s = 0.0

    def __call__(self) -> float:
        return time.process_time() + self._skipped_s

    def skip_to(self, at: float) -> None:
        self._skipped_s += max(0.0, at - self())


@dataclass(slots=True, eq=False, kw_only=True)
class Told:
    """What one request got, with the time of every token."""

    generation: Generation
    token_ids: list[int] = field(default_factory=list)
    told_at: list[float] = field(default_factory=list)  # as long as ``token_ids``
    reason: str = ""

    @property
    def sequence(self) -> TokenSequence:
        return self.generation.sequence

    @property
    def prompt_and_output(self) -> list[int]:
        return [*self.sequence.prompt_ids, *self.token_ids]


class NoText:
    """Nobody reads."""

    stopped: str | None = None

    def push(self, token_id: int) -> str:
        return ""

    def finish(self) -> str:
        return ""


def open_model(config: LlmConfig) -> PagedModel:
    """Load ``MODEL``, with the cache that ``config`` asks for."""
    loaded = load_model_folder(
        Path(ModelStore().pull(MODEL).files["model"]),
        weights=config.weights,
        device=config.device,
        threads=config.threads,
        max_seq_length=config.max_seq_length,
    )
    num_blocks = count_blocks(loaded, config)
    return PagedModel(
        loaded, num_blocks, config.cache_block_size, fused_attention=config.fused_attention
    )


class LocalEngine:
    """A runner with a scheduler and a cold cache of its own; ``model`` may serve several, one
    after the other. ``num_blocks`` limits the cache to a part of the model's; ``scheduling``
    replaces fields of ``SchedulerConfig``."""

    def __init__(
        self,
        model: PagedModel,
        config: LlmConfig,
        *,
        num_blocks: int | None = None,
        clock: Callable[[], float] = time.monotonic,
        **scheduling: Any,
    ) -> None:
        self.model = model
        self.pool = BlockPool(
            num_blocks or model.num_blocks, model.block_size, prefix_cache=config.prefix_cache
        )
        cost = StepCost()
        warm_up = WarmUp(model, config.max_seq_length)
        warm_up.learn_costs(cost, config.max_batch_size)
        measured = SchedulerConfig.from_llm_config(
            config,
            swap_ms_per_block=warm_up.time_swap_ms(),
            max_swapped_blocks=self.pool.num_blocks // 4,
        )
        self.scheduler = Scheduler(replace(measured, **scheduling), self.pool, cost)
        self.runner = Runner(model, self.scheduler, frozenset(), clock)
        self.told: dict[int, Told] = {}
        self._config = config
        self._clock = clock

    def submit(self, prompt_ids: Sequence[int], max_tokens: int, **options: Any) -> Told:
        """Ask for a greedy answer of exactly ``max_tokens``; ``options`` are those of the engine's
        ``Sequence``."""
        options = {"arrived_at": self._clock(), **options}
        key = len(self.told)
        sequence = TokenSequence(
            key=key, prompt_ids=list(prompt_ids), max_tokens=max_tokens, **options
        )
        ahead = None
        if self._config.speculative_tokens > 0:
            index = NgramIndex(prompt_ids, self._config.max_seq_length)
            ahead = LookAhead(index, self._config.speculative_tokens)
        generation = Generation(
            sequence=sequence,
            sampling=Sampling(temperature=0.0, max_tokens=max_tokens, ignore_eos=True),
            answer=Answer(key, len(prompt_ids), NoText()),
            look_ahead=ahead,
        )
        self.runner.submit(generation)
        self.told[key] = Told(generation=generation)
        return self.told[key]

    def step(self) -> None:
        """Run one step and note what it brought."""
        growths = self.runner.step()
        now = self._clock()
        for growth in growths:
            told = self.told[growth.answer.key]
            told.token_ids += growth.token_ids
            told.told_at += [now] * len(growth.token_ids)
            told.reason = growth.reason

    def run(self) -> None:
        """Step until everybody is answered."""
        while not self.runner.is_idle:
            self.step()
