"""The engine boundary: one contract for vision, LLM and upstream engines.

``tests/contract`` runs the same suite against every implementation, fakes included.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Protocol

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


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineStatistics:
    """Snapshot for ``/readyz``, ``/metrics`` and ``/v1/models``."""

    models: tuple[ModelStatistics, ...]

    @property
    def ready(self) -> bool:
        return all(model.ready for model in self.models)


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
