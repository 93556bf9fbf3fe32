"""Engine configuration: frozen values, validated when built, no environment reads."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelConfig:
    """How one model is served.

    ``batch_timeout_millis`` is the batching window from the first item of a batch.
    ``prefetch_count`` is how many batches may wait, prepared, behind the running one, per worker.
    ``threads`` = 0 divides the container's CPU quota between the workers.
    """

    workers: int = 1
    max_batch_size: int = 8
    batch_timeout_millis: float = 5.0
    max_concurrent_requests: int = 1024
    execution_providers: tuple[str, ...] = ("CPUExecutionProvider",)
    prefetch_count: int = 1
    threads: int = 0
    prepare_threads: int = 1
    start_timeout_s: float = 120.0
    stall_timeout_s: float = 60.0  # a worker that holds a batch and says nothing is restarted
    max_item_bytes: int = 8 * 1024 * 1024
    slab_bytes: int = 64 * 1024 * 1024
    max_output_bytes: int = 16 * 1024 * 1024
    max_restarts: int = 10  # within restart_window_s, then the circuit opens
    restart_window_s: float = 60.0

    def __post_init__(self) -> None:
        _at_least(self, 1, "workers", "max_batch_size", "max_concurrent_requests")
        _at_least(self, 1, "prepare_threads", "max_item_bytes", "max_output_bytes", "max_restarts")
        _at_least(self, 0, "batch_timeout_millis", "prefetch_count", "threads")
        if not self.execution_providers:
            raise ValueError("execution_providers must name at least one provider")
        for name in ("start_timeout_s", "stall_timeout_s", "restart_window_s"):
            if getattr(self, name) <= 0:
                raise ValueError(f"{name} must be > 0, got {getattr(self, name)}")
        if self.slab_bytes < self.max_item_bytes:
            raise ValueError(
                f"slab_bytes ({self.slab_bytes}) must be >= max_item_bytes ({self.max_item_bytes})"
            )


def _at_least(config: ModelConfig, bound: int, *names: str) -> None:
    for name in names:
        value = getattr(config, name)
        if value < bound:
            raise ValueError(f"{name} must be >= {bound}, got {value}")
