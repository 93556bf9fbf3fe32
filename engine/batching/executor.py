"""The seam between the batcher (decides) and the workers (act).

``engine.workers.pool.WorkerPool`` implements :class:`Executor`; ``tests/fakes`` has another.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

import msgspec

from engine.types import Failed, Result


class Work(msgspec.Struct, frozen=True, kw_only=True):
    """One item bound to a batch. ``key`` is unique in the engine's life, across lanes."""

    key: int
    payload: bytes | memoryview
    meta: bytes
    options: bytes


class ExecutorEvents(Protocol):
    """What an executor reports, always on the event loop's thread."""

    def on_room(self) -> None:
        """A worker became able to take a batch."""

    def on_done(self, key: int, outcome: Result | Failed) -> None:
        """One dispatched item was answered; every dispatched item gets this or ``on_lost``."""

    def on_lost(self, keys: Sequence[int], reason: str) -> None:
        """The worker that held these items died (``reason`` is readable); nothing was answered."""

    def on_batch(self, size: int, run_s: float) -> None:
        """A batch of ``size`` items ran for ``run_s`` seconds (feeds the cost model)."""

    def on_unavailable(self, reason: str, retry_at: float | None) -> None:
        """No worker will come back by itself soon (circuit open): answer what waits.

        ``retry_at`` is when the next attempt begins (loop time), None if that is not known.
        """


class Executor(Protocol):
    """A fixed number of workers for one model."""

    @property
    def free_slots(self) -> int:
        """How many batches can be dispatched right now."""

    @property
    def idle_workers(self) -> int:
        """Ready workers that hold nothing; a suspect item runs alone on one of these."""

    @property
    def idle_streams(self) -> int:
        """How many batches would begin to run at once; one per idle worker, unless a worker runs
        several side by side."""

    @property
    def warmup_run_s(self) -> dict[int, float]:
        """Measured run time per batch size from warm-up; empty until the first worker is ready."""

    def dispatch(self, batch: Sequence[Work], *, alone: bool = False) -> int:
        """Hand the head of ``batch`` to a worker and return how many items it took.

        Fewer than offered (even 0) when the slab has no room; the rest stays with the caller.
        ``alone`` asks for an idle worker that gets nothing else until this batch is answered.
        A retried key reuses its slab slot, so nothing is copied again.
        """

    def withdraw(self, key: int) -> None:
        """Nobody waits for this dispatched item any more: leave out what is not done yet.

        It is still reported by ``on_done`` or ``on_lost``. Unknown keys are ignored.
        """

    def release(self, key: int) -> None:
        """The caller will not retry this lost item: free its slab slot."""
