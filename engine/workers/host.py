"""One worker slot of a vision pool: what its process holds, and what it says."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Sequence
from typing import Protocol

import msgspec

from engine.config import ModelConfig
from engine.workers.child import Launch
from engine.workers.messages import (
    BatchRan,
    Finish,
    ItemDone,
    ItemFailed,
    Ready,
    RunBatch,
    Start,
    StartFailed,
    Task,
    Up,
    Withdraw,
)
from engine.workers.stall import StallLimit
from engine.workers.supervisor import HostState, Supervisor


class HostListener(Protocol):
    """What a host reports to its pool, on the loop."""

    def on_ready(self, ready: Ready) -> None:
        """The worker is loaded and warm."""

    def on_room(self) -> None:
        """The worker can take a batch, or became idle."""

    def on_batch_ran(self, ran: BatchRan) -> None:
        """A batch left the run stage."""

    def on_item(self, answer: ItemDone | ItemFailed, dispatched_us: int) -> None:
        """An item was answered; ``dispatched_us`` is when its batch was sent (monotonic)."""

    def on_death(self, keys: Sequence[int], reason: str) -> None:
        """The worker is gone, the unanswered ``keys`` with it."""


class WorkerHost:
    """Sends batches to one supervised worker. All methods run on the loop ``start`` ran on.

    Holds at most ``cuda_streams + prefetch_count`` batches that have not run. Implements
    :class:`engine.workers.supervisor.SlotOwner`.
    """

    def __init__(
        self, index: int, launch: Launch, start: Start, config: ModelConfig, listener: HostListener
    ) -> None:
        self.index = index
        self._start = start
        self._config = config
        self._listener = listener
        self._stall = StallLimit(config.stall_floor_s, config.stall_timeout_s)
        self._supervisor = Supervisor(index, launch, config, self, self._stall.limit_s)
        self._ready: Ready | None = None
        self._unran: set[int] = set()
        self._held: dict[int, int] = {}  # unanswered key: sent at, monotonic microseconds
        self._next_batch = 0
        self._is_reserved = False  # an item runs alone here

    @property
    def state(self) -> HostState:
        return self._supervisor.state

    @property
    def reason(self) -> str:
        """Why it is not ready, readable; empty when it is."""
        return self._supervisor.reason

    @property
    def probe_at(self) -> float | None:
        """See :attr:`Supervisor.probe_at`."""
        return self._supervisor.probe_at

    @property
    def restarts(self) -> int:
        return self._supervisor.restarts

    @property
    def free_slots(self) -> int:
        if self.state is not HostState.READY or self._is_reserved:
            return 0
        return self._config.cuda_streams + self._config.prefetch_count - len(self._unran)

    @property
    def is_idle(self) -> bool:
        """Ready and holding nothing."""
        return self.state is HostState.READY and not self._held

    @property
    def idle_streams(self) -> int:
        """How many batches would begin at once; with one stream, none before all is answered."""
        if self.state is not HostState.READY or self._is_reserved:
            return 0
        return max(0, self._config.cuda_streams - max(len(self._unran), bool(self._held)))

    @property
    def load(self) -> tuple[int, int]:
        """Batches waiting or running, unanswered items: the smaller, the sooner it is free."""
        return len(self._unran), len(self._held)

    def rss_bytes(self) -> int:
        """Resident memory of the worker, 0 without one."""
        return self._supervisor.rss_bytes()

    def cpu_s(self) -> float:
        """See :meth:`Supervisor.cpu_s`."""
        return self._supervisor.cpu_s()

    def own_bytes(self) -> int:
        """Memory that is the worker's alone, 0 without one."""
        return self._supervisor.own_bytes()

    def age_s(self) -> float:
        """Since the worker was started, 0 without one."""
        return self._supervisor.age_s()

    def announce_room(self) -> None:
        """Tell the pool, which has just taken this host in, that it can take a batch."""
        self._listener.on_room()

    async def start(self) -> None:
        """See :meth:`Supervisor.start`."""
        await self._supervisor.start()

    def dispatch(self, tasks: Sequence[Task], *, alone: bool) -> None:
        """Send a batch; the caller has checked ``free_slots`` (``is_idle`` for ``alone``)."""
        assert self.free_slots > 0
        if not self._held:
            self._supervisor.note_busy()
        self._next_batch += 1
        self._is_reserved = alone
        self._unran.add(self._next_batch)
        dispatched_us = time.monotonic_ns() // 1000
        self._held.update((task.key, dispatched_us) for task in tasks)
        self._supervisor.send(RunBatch(self._next_batch, tuple(tasks)))

    def withdraw(self, key: int) -> None:
        """Nobody waits for the item any more; ignored if it is not here."""
        if key in self._held:
            self._supervisor.send(Withdraw(key))

    async def aclose(self, deadline: float) -> None:
        """See :meth:`Supervisor.aclose`."""
        await self._supervisor.aclose(deadline, Finish())

    # from the supervisor

    def first_message(self) -> Start:
        if self._ready is None:
            return self._start
        return msgspec.structs.replace(self._start, measured_run_s=self._ready.warmup_run_s)

    def is_busy(self) -> bool:
        return bool(self._held)

    def on_ready(self) -> None:
        assert self._ready is not None
        self._listener.on_ready(self._ready)

    def on_writable(self) -> None:
        """What is outstanding is bounded by ``free_slots``, not by the socket."""

    def on_gone(self, reason: str) -> None:
        """Hand back what the worker held; it is reaped, so nothing reads the slab."""
        keys = tuple(self._held)
        self._held.clear()
        self._unran.clear()
        self._is_reserved = False
        self._listener.on_death(keys, reason)

    def on_message(self, message: Up) -> None:
        match message:
            case ItemDone() | ItemFailed():
                self._on_answer(message)
            case BatchRan(batch=batch):
                self._unran.discard(batch)
                now = asyncio.get_running_loop().time()
                self._stall.observe(now - self._supervisor.last_sign)
                self._listener.on_batch_ran(message)
                self._listener.on_room()
            case Ready():
                self._ready = message
                self._supervisor.note_loaded()
            case StartFailed(detail=detail):
                self._supervisor.note_load_failed(detail)

    def _on_answer(self, answer: ItemDone | ItemFailed) -> None:
        dispatched_us = self._held.pop(answer.key, None)
        if dispatched_us is None:
            return
        self._supervisor.note_useful()
        self._listener.on_item(answer, dispatched_us)
        if not self._held:
            self._is_reserved = False
            self._listener.on_room()
