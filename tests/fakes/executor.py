"""An executor that a test plays by hand, or that answers by itself after a fixed time."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from engine.batching.executor import ExecutorEvents, Work
from engine.errors import EngineError
from engine.types import Failed, Result, Timing
from engine.workers.pool import PoolStatistics

Seconds = Callable[[int], float]  # by batch size

# A model that takes hardly any time, whatever the size: company always pays.
FLAT_RUN_S = dict.fromkeys(range(1, 129), 1e-6)


def echo(work: Work) -> bytes:
    return bytes(work.payload)


@dataclass(eq=False)
class FakeBatch:
    """What one worker took in one go."""

    worker: int
    works: list[Work]
    alone: bool
    keys: list[int] = field(init=False)  # not answered yet

    def __post_init__(self) -> None:
        self.keys = [work.key for work in self.works]


class FakeExecutor:
    """``workers`` workers with room for ``1 + prefetch`` batches each and ``slab_items`` items.

    With ``run_s=None`` nothing is answered until the test says so (``finish``, ``kill``,
    ``fail``); with a number, or a function of the batch's size, every worker runs its batches one
    after the other, each for so many seconds. ``block`` stops that, as a model that hangs would.
    An answer's data is what ``respond`` makes of its item, by default the payload, so that
    mixed-up answers show.
    """

    def __init__(
        self,
        events: ExecutorEvents,
        *,
        workers: int = 1,
        prefetch: int = 0,
        run_s: float | Seconds | None = None,
        slab_items: int = 1000,
        warmup_run_s: dict[int, float] | None = None,
        respond: Callable[[Work], bytes | EngineError] = echo,
        model: str = "fake",
        version: str = "1",
    ) -> None:
        self.batches: list[FakeBatch] = []  # every batch ever dispatched
        self.busy: list[FakeBatch] = []  # not finished
        self.slab: set[int] = set()  # keys that occupy a slot
        self.alive = set(range(workers))
        self.run_s = run_s
        self.num_workers = workers
        self.is_started = False
        self.start_error: BaseException | None = None
        self.start_gate: asyncio.Event | None = None  # start waits for it
        self.queue_ages_s: deque[float] = deque(maxlen=100)  # as told by ``tend``
        self.withdrawn: deque[int] = deque(maxlen=1000)
        self._events = events
        self._slots = 1 + prefetch
        self._slab_items = slab_items
        self._warmup_run_s = FLAT_RUN_S if warmup_run_s is None else warmup_run_s
        self._respond = respond
        self._model = model
        self._version = version
        self._is_blocked = False

    # --- Executor

    @property
    def free_slots(self) -> int:
        return sum(self._room(worker) for worker in self.alive)

    @property
    def idle_workers(self) -> int:
        return sum(not self._held(worker) for worker in self.alive)

    @property
    def idle_streams(self) -> int:
        return self.idle_workers

    @property
    def warmup_run_s(self) -> dict[int, float]:
        return self._warmup_run_s

    def dispatch(self, batch: Sequence[Work], *, alone: bool = False) -> int:
        assert not alone or self.idle_workers > 0
        candidates = [w for w in sorted(self.alive) if self._room(w) > 0]
        worker = min(candidates, key=lambda w: len(self._held(w)))
        retried = sum(work.key in self.slab for work in batch)
        taken = min(len(batch), self._slab_items - len(self.slab) + retried)
        if taken > 0:
            fake = FakeBatch(worker, list(batch[:taken]), alone)
            self.batches.append(fake)
            self.busy.append(fake)
            self.slab.update(fake.keys)
            self._run_next(worker)
        return taken

    def withdraw(self, key: int) -> None:
        self.withdrawn.append(key)

    def release(self, key: int) -> None:
        self.slab.discard(key)

    # --- Pool, for the engine

    async def start(self) -> None:
        if self.start_gate is not None:
            await self.start_gate.wait()
        if self.start_error is not None:
            raise self.start_error
        self.is_started = True
        self._events.on_room()

    async def aclose(self, deadline: float) -> None:
        self.is_started = False
        for worker in sorted(self.alive):
            self.kill(worker, "closed")

    def tend(self, queue_age_s: float) -> None:
        self.queue_ages_s.append(queue_age_s)

    def statistics(self) -> PoolStatistics:
        is_ready = self.is_started and bool(self.alive)
        return PoolStatistics(
            ready=is_ready,
            reason="" if is_ready else "no worker",
            workers_alive=len(self.alive),
            workers_wanted=self.num_workers,
            restarts=0,
        )

    # --- played by the test

    @property
    def payloads(self) -> list[list[bytes]]:
        """Payloads of every batch so far."""
        return [[bytes(work.payload) for work in batch.works] for batch in self.batches]

    def finish(self, batch: FakeBatch | None = None, *, error: EngineError | None = None) -> None:
        """Answer a batch (default: the oldest unfinished), or fail it whole."""
        batch = batch or self.busy[0]
        self.busy.remove(batch)
        self._events.on_batch(len(batch.works), self._seconds(batch))
        for work in batch.works:
            self.slab.discard(work.key)
            answer = error or self._respond(work)
            if isinstance(answer, EngineError):
                self._events.on_done(work.key, Failed(answer))
            else:
                self._events.on_done(work.key, self._result(batch, answer))
        self._events.on_room()
        self._run_next(batch.worker)

    def kill(self, worker: int = 0, reason: str = "killed by signal 9") -> None:
        """The worker dies with everything that it holds."""
        self.alive.discard(worker)
        lost = self._held(worker)
        self.busy = [batch for batch in self.busy if batch.worker != worker]
        self._events.on_lost([work.key for batch in lost for work in batch.works], reason)

    def revive(self, worker: int = 0) -> None:
        self.alive.add(worker)
        self._events.on_room()

    def break_down(self, reason: str = "circuit open", retry_at: float | None = None) -> None:
        """Every worker dies and none comes back by itself."""
        for worker in sorted(self.alive):
            self.kill(worker, reason)
        self._events.on_unavailable(reason, retry_at)

    def block(self) -> None:
        self._is_blocked = True

    def unblock(self) -> None:
        self._is_blocked = False
        for worker in self.alive:
            self._run_next(worker)

    # --- inside

    def _held(self, worker: int) -> list[FakeBatch]:
        return [batch for batch in self.busy if batch.worker == worker]

    def _room(self, worker: int) -> int:
        held = self._held(worker)
        return 0 if any(batch.alone for batch in held) else self._slots - len(held)

    def _run_next(self, worker: int) -> None:
        held = self._held(worker)
        if self.run_s is not None and held and not self._is_blocked:
            asyncio.get_running_loop().call_later(self._seconds(held[0]), self._on_ran, held[0])

    def _seconds(self, batch: FakeBatch) -> float:
        if callable(self.run_s):
            return self.run_s(len(batch.works))
        return self.run_s or 0.0

    def _on_ran(self, batch: FakeBatch) -> None:
        if batch in self.busy and self._held(batch.worker)[0] is batch and not self._is_blocked:
            self.finish(batch)

    def _result(self, batch: FakeBatch, data: bytes) -> Result:
        run_us = round(self._seconds(batch) * 1e6)
        return Result(
            data=data,
            model=self._model,
            version=self._version,
            timing=Timing(run=run_us),
            busy_us=run_us,
            batch_size=len(batch.works),
        )
