"""What the scheduler is told (``SchedulerConfig``) and what it decides (``StepPlan``)."""

from __future__ import annotations

from dataclasses import dataclass

from engine.config import LlmConfig
from engine.errors import InvalidInput
from engine.llm.blocks import BlockStatistics
from engine.llm.sequence import Sequence
from engine.llm.step_cost import StepShape


class NeverFits(InvalidInput):
    """Prompt and ``max_tokens`` exceed the cache or ``max_seq_length``: no wait would help."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SchedulerConfig:
    """Bounds of the scheduler; the names that ``LlmConfig`` has too mean the same there.

    ``idle_step_ms`` caps a step in which nobody decodes: long enough to be efficient, short
    enough for newcomers to join. ``max_chunk_tokens`` caps the prefill of any step.
    ``speculative_max_batch`` is the number of decoding sequences above which drafts are left
    out. ``swap_ms_per_block`` is one copy between device and host; 0 means that swapping is off,
    and ``max_swapped_blocks`` bounds the host memory it takes.
    """

    max_batch_size: int = 32
    max_seq_length: int = 4096
    max_waiting: int = 1024
    max_step_ms: float = 50.0
    idle_step_ms: float = 200.0
    min_chunk_tokens: int = 16
    max_chunk_tokens: int = 512
    max_wait_ms: float = 10_000.0
    min_rate: float = 0.0
    preempt_ratio: float = 0.3
    scheduler_interval: float = 50.0
    max_preemptions: int = 3
    speculative_max_batch: int = 4
    swap_ms_per_block: float = 0.0
    max_swapped_blocks: int = 0

    @property
    def decode_step_ms(self) -> float:
        """The cap of a step in which somebody decodes."""
        if self.min_rate <= 0.0:
            return self.max_step_ms
        return min(self.max_step_ms, 1000.0 / self.min_rate)

    @classmethod
    def from_llm_config(
        cls,
        config: LlmConfig,
        *,
        max_chunk_tokens: int = 512,
        swap_ms_per_block: float = 0.0,
        max_swapped_blocks: int = 0,
    ) -> SchedulerConfig:
        """The last three are measured or chosen by the runner, for its device."""
        swaps = config.zero_copy_fallback
        return cls(
            max_batch_size=config.max_batch_size,
            max_seq_length=config.max_seq_length,
            max_waiting=config.max_waiting,
            max_step_ms=config.max_step_ms,
            idle_step_ms=4 * config.max_step_ms,
            min_chunk_tokens=config.min_chunk_tokens,
            max_chunk_tokens=max(max_chunk_tokens, config.min_chunk_tokens),
            max_wait_ms=config.max_wait_ms,
            min_rate=config.min_rate,
            preempt_ratio=config.preempt_ratio,
            scheduler_interval=config.scheduler_interval,
            max_preemptions=config.max_preemptions,
            swap_ms_per_block=swap_ms_per_block if swaps else 0.0,
            max_swapped_blocks=max_swapped_blocks if swaps else 0,
        )

    def __post_init__(self) -> None:
        for name in ("max_batch_size", "max_seq_length", "max_waiting", "min_chunk_tokens"):
            if getattr(self, name) < 1:
                raise ValueError(f"{name} must be >= 1, got {getattr(self, name)}")
        for name in ("max_step_ms", "idle_step_ms", "max_wait_ms", "scheduler_interval"):
            if not getattr(self, name) > 0.0:
                raise ValueError(f"{name} must be > 0, got {getattr(self, name)}")
        if self.max_chunk_tokens < self.min_chunk_tokens:
            raise ValueError("max_chunk_tokens must not be below min_chunk_tokens")


@dataclass(frozen=True, slots=True, kw_only=True)
class PlannedItem:
    """Compute ``token_ids`` at positions ``start`` onwards; ``sequence.blocks`` has their slots.

    The last ``num_drafts`` tokens are guesses. ``samples`` says that logits are wanted: of the
    last ``num_drafts + 1`` positions. It is False for a prefill chunk that is not the last one.
    """

    sequence: Sequence
    start: int
    token_ids: tuple[int, ...]
    num_drafts: int
    samples: bool


@dataclass(frozen=True, slots=True)
class SwapMove:
    """Copy the first blocks of a sequence's cache to host memory, or from there into ``blocks``."""

    key: int
    blocks: tuple[int, ...]


@dataclass(frozen=True, slots=True, eq=False, kw_only=True)
class StepPlan:
    """One step, in this order: ``swap_out``, ``swap_in``, then one forward pass over ``items``.

    ``items`` may be empty when there is something to swap. The host copy of a ``swap_in`` is
    dropped after the commit; after a rollback it is still needed, whereas the copies of that
    plan's ``swap_out`` are void.
    """

    step: int
    planned_at: float
    items: tuple[PlannedItem, ...]
    swap_out: tuple[SwapMove, ...]
    swap_in: tuple[SwapMove, ...]
    shape: StepShape


@dataclass(frozen=True, slots=True, kw_only=True)
class SchedulerStatistics:
    """Snapshot; counters only grow. ``fragmentation`` is the share of owned cache slots that are
    meant for no token."""

    running: int
    waiting: int
    blocks: BlockStatistics
    fragmentation: float
    steps: int  # committed
    rollbacks: int
    planned_items: int  # summed over committed steps: divided by ``steps``, the mean batch
    tokens: int  # generated
    prompt_tokens: int  # of started prompts
    cached_prompt_tokens: int  # of those, spared by the prefix cache
    computed_tokens: int  # positions run, drafts and recomputation included
    preemptions: int
    swaps: int  # of the preemptions, those that kept their work in host memory
    starvations: int  # requests that waited beyond their class's ageing bound
    drafted: int
    accepted: int
