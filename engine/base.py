"""The engine boundary: one contract for vision, LLM and upstream engines.

``tests/contract`` runs the same suite against every implementation, fakes included.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Protocol, runtime_checkable

from engine.histogram import Histogram
from engine.types import Emit, Item, LaneSpec


class Lane(Protocol):
    """A stream's bounded queue inside the engine. All calls run on the event loop's thread.

    Every offered item is answered by exactly one outcome through ``emit``. ``emit`` may run
    inside ``offer`` (an older item was superseded), ``cancel`` and ``close``.
    """

    def offer(self, item: Item) -> None:
        """Queue ``item`` without blocking.

        Raises:
            Overloaded: the lane is full and its policy keeps what it has; nothing was queued.
            Unavailable: the engine is closing or the model's circuit is open; nothing was queued.
        """

    def cancel(self, item_id: int) -> None:
        """Answer the item with ``Cancelled`` now; unknown and answered ids are ignored."""

    def close(self) -> None:
        """Answer everything unanswered with ``Cancelled`` and forget the lane; idempotent."""


@runtime_checkable
class TextLane(Lane, Protocol):
    """A lane whose items are answered token by token, with ``Progress`` before the outcome."""

    def note_release(self, item_id: int, released: int, tokens_per_s: float) -> None:
        """Say how many tokens the stream's pacer has let go to the reader so far, and how fast
        it does so now; what the reader does not need yet may wait. Unknown ids are ignored."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LlmStatistics:
    """What a language model's scheduler does, under the names that its operators know.

    Rates and shares are over the last seconds, latencies in seconds. Counters only grow while the
    process lives, restarts of the worker included. ``histograms`` maps a name to the cumulative
    counts of its buckets, ``histogram_sums`` to the sum of what they counted.
    """

    device: str = ""
    weights: str = ""  # the precision that steps run with now
    running: int = 0
    waiting: int = 0
    scheduler_queue_latency_99: float = 0.0
    kv_cache_utilization: float = 0.0  # share of the blocks that sequences own
    batch_size_avg: float = 0.0
    preemption_count_per_sec: float = 0.0
    scheduler_starvation_count: int = 0
    memory_fragmentation: float = 0.0  # share of the owned slots that hold no token
    context_switch_overhead: float = 0.0  # share of the time that preemption copies took
    tokens_per_s: float = 0.0
    step_p50_s: float = 0.0
    step_p99_s: float = 0.0
    blocks_total: int = 0
    blocks_cached: int = 0
    steps: int = 0
    tokens: int = 0
    prompt_tokens: int = 0
    cached_prompt_tokens: int = 0
    preemptions: int = 0
    drafted: int = 0  # tokens proposed by look-ahead, and those of them that were accepted
    drafts_accepted: int = 0
    histograms: dict[str, tuple[int, ...]] = field(default_factory=dict)
    histogram_sums: dict[str, float] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class VersionStatistics:
    """One version of a model, in one precision. ``state`` is one of ``active``, ``trial`` (active
    and compared with the one before), ``served`` (for who pins it), ``reserve`` (warm, in case
    the active one fails its trial), ``rejected`` (did not start, or was rolled back: ``reason``
    says why)."""

    version: str
    state: str
    reason: str = ""
    workers_alive: int = 0
    results: int = 0
    failed: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelStatistics:
    """One model's counters and gauges; counters only grow while the process lives.

    ``accepted == results + dropped + failed + cancelled + in_flight`` holds at every moment.
    """

    model: str
    version: str
    ready: bool
    reason: str  # why it is not ready; empty when it is
    workers_alive: int
    workers_wanted: int
    worker_restarts: int
    worker_rss_bytes: tuple[int, ...]
    providers: tuple[str, ...]
    lanes: int
    queued: int
    in_flight: int
    accepted: int
    results: int
    dropped: dict[str, int] = field(default_factory=dict)  # by DropReason value
    failed: int = 0
    cancelled: int = 0
    batches: int = 0
    retried: int = 0
    predicted_run_s: float = 0.0
    run_s: float = 0.0  # that batches ran, all workers together
    # By version, of those in memory; ``hops`` also by the names of ``Timing``, in seconds.
    hops: dict[str, dict[str, Histogram]] = field(default_factory=dict)
    batch_sizes: dict[str, Histogram] = field(default_factory=dict)
    queue_age_s: float = 0.0  # of what has waited longest
    workers_cpu_s: float = 0.0
    worker_memory_share: float = 0.0  # of the ceiling, the fullest worker's; 0 without a ceiling
    workers_replaced: dict[str, int] = field(default_factory=dict)  # planned, by cause
    versions: tuple[VersionStatistics, ...] = ()
    reloads: dict[str, int] = field(default_factory=dict)  # by how they ended
    last_reload: str = ""  # in words
    unloaded: bool = False  # on request: it does not count against the engine's readiness
    llm: LlmStatistics | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineStatistics:
    """Snapshot for ``/readyz``, ``/metrics`` and ``/v1/models``."""

    models: tuple[ModelStatistics, ...]

    @property
    def ready(self) -> bool:
        return all(model.ready or model.unloaded for model in self.models)


@runtime_checkable
class Reloadable(Protocol):
    """An engine whose models can change their version while they serve."""

    async def reload(self, model: str, version: str | None = None) -> str:
        """Serve what the model's repository holds now, or ``version``; returns what serves.

        Raises:
            UnknownModel: no such model or version.
            Overloaded: a reload of it is under way.
            Unavailable: it cannot be reloaded.
            EngineError: the new version cannot be used; the old one goes on serving.
        """

    async def unload(self, model: str) -> None:
        """End the model's workers, after they answered what they hold, until a ``reload``.

        Raises as ``reload``.
        """


class Engine(Protocol):
    """Serves one or more models. Constructors only store; ``start`` begins work."""

    async def start(self) -> None:
        """Start and warm every model; returns when all are ready.

        Raises:
            StartupError: a model could not start within its time-out; everything is cleaned up.
        """

    def open_lane(self, spec: LaneSpec, emit: Emit) -> Lane:
        """Open a lane; ``emit`` runs on the event loop's thread and must not raise.

        Raises:
            UnknownModel: no such model or version.
            Unavailable: the engine is closing.
        """

    def statistics(self) -> EngineStatistics:
        """Cheap snapshot; may be called at any time."""

    async def aclose(self, deadline: float) -> None:
        """Finish what is in flight until ``deadline`` (loop time), then answer the rest with
        ``Dropped(SHUTDOWN)`` and stop every worker; idempotent."""
