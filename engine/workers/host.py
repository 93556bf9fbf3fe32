"""Keeps one worker slot staffed: start, watch, restart with backoff, give up for a while, close."""

from __future__ import annotations

import asyncio
import logging
import random
import time
from collections.abc import Sequence
from enum import Enum
from typing import Any, Protocol

from engine.config import ModelConfig
from engine.errors import EngineError, StartupError, Unavailable
from engine.workers.child import Child, Launch
from engine.workers.messages import (
    BatchRan,
    Finish,
    ItemDone,
    ItemFailed,
    Ready,
    RunBatch,
    StartFailed,
    Task,
    Up,
)
from engine.workers.restart import RestartPolicy

logger = logging.getLogger(__name__)


class HostState(Enum):
    """Life of a worker slot."""

    NEW = "new"
    STARTING = "starting"  # spawned, loading
    READY = "ready"
    BACKOFF = "backoff"  # died, waiting for its next start
    OPEN = "open"  # died too often: one probe per window
    PROBING = "probing"  # such a probe is loading
    CLOSED = "closed"


class Event(Enum):
    SPAWN = "spawn"
    READY = "ready"
    DEATH = "death"
    TRIP = "trip"  # the death that opened the circuit
    CLOSE = "close"


TRANSITIONS = {
    (HostState.NEW, Event.SPAWN): HostState.STARTING,
    (HostState.STARTING, Event.READY): HostState.READY,
    (HostState.STARTING, Event.DEATH): HostState.BACKOFF,
    (HostState.STARTING, Event.TRIP): HostState.OPEN,
    (HostState.READY, Event.DEATH): HostState.BACKOFF,
    (HostState.READY, Event.TRIP): HostState.OPEN,
    (HostState.BACKOFF, Event.SPAWN): HostState.STARTING,
    (HostState.OPEN, Event.SPAWN): HostState.PROBING,
    (HostState.PROBING, Event.READY): HostState.READY,
    (HostState.PROBING, Event.DEATH): HostState.OPEN,
    (HostState.PROBING, Event.TRIP): HostState.OPEN,
    **{(state, Event.CLOSE): HostState.CLOSED for state in HostState},
}


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
    """One worker slot of a pool. All methods run on the event loop that ``start`` ran on.

    Holds at most ``1 + prefetch_count`` batches that have not run. ``start`` waits for the first
    worker and raises if that cannot load; later deaths are handled here and reported. Every state
    can be left by ``aclose``.
    """

    def __init__(
        self, index: int, launch: Launch, config: ModelConfig, listener: HostListener
    ) -> None:
        self.index = index
        self.reason = "not started"  # why it is not ready, readable; "" when it is
        self.restarts = 0
        self._launch = launch
        self._config = config
        self._listener = listener
        self._policy = RestartPolicy(config.max_restarts, config.restart_window_s)
        self._state = HostState.NEW
        self._child: Child | None = None
        self._task: asyncio.Task[None] | None = None
        self._loaded: asyncio.Future[Ready] | None = None
        self._unran: set[int] = set()
        self._held: dict[int, int] = {}  # unanswered key: sent at, monotonic microseconds
        self._next_batch = 0
        self._is_reserved = False  # an item runs alone here
        self._last_sign = 0.0  # loop time of the last message, or of the first batch after idling
        self._was_useful = False

    @property
    def state(self) -> HostState:
        return self._state

    @property
    def _is_closed(self) -> bool:
        return self._state is HostState.CLOSED

    @property
    def free_slots(self) -> int:
        if self._state is not HostState.READY or self._is_reserved:
            return 0
        return 1 + self._config.prefetch_count - len(self._unran)

    @property
    def is_idle(self) -> bool:
        """Ready and holding nothing."""
        return self._state is HostState.READY and not self._held

    @property
    def load(self) -> tuple[int, int]:
        """Batches waiting or running, unanswered items: the smaller, the sooner it is free."""
        return len(self._unran), len(self._held)

    def rss_bytes(self) -> int:
        """Resident memory of the worker, 0 without one."""
        return self._child.rss_bytes() if self._child is not None else 0

    async def start(self) -> None:
        """Start the first worker and wait until it is ready.

        Raises:
            StartupError: it could not load, or not within ``start_timeout_s``.
            Unavailable: the host was closed meanwhile.
        """
        first: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        name = f"worker-host-{self._launch.start.manifest.name}-{self.index}"
        self._task = asyncio.create_task(self._supervise(first), name=name)
        # Not in the task: cancelled before its first step, it would tell nobody.
        self._task.add_done_callback(lambda _: _refuse(first))
        try:
            await first
        finally:
            first.cancel()

    def dispatch(self, tasks: Sequence[Task], *, alone: bool) -> None:
        """Send a batch; the caller has checked ``free_slots`` (``is_idle`` for ``alone``)."""
        assert self._child is not None
        assert self.free_slots > 0
        loop = asyncio.get_running_loop()
        if not self._held:
            self._last_sign = loop.time()
        self._next_batch += 1
        self._is_reserved = alone
        self._unran.add(self._next_batch)
        dispatched_us = time.monotonic_ns() // 1000
        self._held.update((task.key, dispatched_us) for task in tasks)
        self._child.send(RunBatch(self._next_batch, tuple(tasks)))

    async def aclose(self, deadline: float) -> None:
        """Let a ready worker finish what it holds until ``deadline`` (loop time), then end it.

        Afterwards no process and no descriptor is left; idempotent.
        """
        is_serving = self._state is HostState.READY
        self._advance(Event.CLOSE)
        self.reason = "closed"
        if self._task is None:
            return
        if is_serving and self._child is not None:
            self._child.send(Finish())
            await self._child.wait_exit(deadline - asyncio.get_running_loop().time())
        self._task.cancel()
        await asyncio.wait({self._task})  # bounded: Child.stop is

    # supervision

    async def _supervise(self, first: asyncio.Future[None]) -> None:
        """The host's task: one worker after another until closed."""
        reason = "closed"
        try:
            while not self._is_closed:
                reason = await self._run_worker(first)
                if not self._is_closed:
                    delay_s = self._note_death(reason)
                    self._report_death(reason)
                    await asyncio.sleep(delay_s)
        except StartupError as error:
            first.set_exception(error)
        except Exception:
            logger.critical("the supervisor of worker %d failed", self.index, exc_info=True)
            reason = self.reason = "internal error in its supervisor"
        finally:
            self._advance(Event.CLOSE)
            self._report_death(reason)

    async def _run_worker(self, first: asyncio.Future[None]) -> str:
        """One worker's life, however short; returns how it ended.

        Raises:
            StartupError: the first one did not become ready.
        """
        self._advance(Event.SPAWN)
        self._was_useful = False
        try:
            return await self._run_child(first)
        except (EngineError, OSError) as error:
            if first.done():
                return str(error)
            raise StartupError(str(error)) from error

    async def _run_child(self, first: asyncio.Future[None]) -> str:
        """Spawn, wait until loaded, watch, reap; raises ``StartupError`` if it never served."""
        self._loaded = asyncio.get_running_loop().create_future()
        child = self._child = await Child.spawn(self.index, self._launch, self._on_message)
        try:
            ready = await self._wait_loaded(child, self._loaded)
            self._advance(Event.READY)
            self.reason = ""
            logger.info("%s of %s is ready", child.name, self._launch.start.manifest.name)
            if not first.done():
                first.set_result(None)
            self._listener.on_ready(ready)
            return f"{child.name} {await self._watch(child)}"
        finally:
            self._loaded = None
            await child.stop()
            self._child = None

    async def _wait_loaded(self, child: Child, loaded: asyncio.Future[Ready]) -> Ready:
        either: list[asyncio.Future[Any]] = [loaded, child.exited]
        limit_s = self._config.start_timeout_s
        await asyncio.wait(either, timeout=limit_s, return_when=asyncio.FIRST_COMPLETED)
        if loaded.done():
            return loaded.result()
        model = self._launch.start.manifest.name
        if child.exited.done():
            raise StartupError(f"model {model}: {child.name} {child.exited.result()} while loading")
        raise StartupError(
            f"model {model}: {child.name} was not ready within start_timeout_s = {limit_s:g} s"
        )

    async def _watch(self, child: Child) -> str:
        """Wait for the end; a worker that holds items and is silent for too long is killed."""
        loop = asyncio.get_running_loop()
        limit_s = self._config.stall_timeout_s
        while not await child.wait_exit(limit_s / 4):
            if self._held and loop.time() - self._last_sign > limit_s:
                child.kill(f"was killed: no answer within stall_timeout_s = {limit_s:g} s")
        return child.exited.result()

    def _note_death(self, reason: str) -> float:
        """Choose the next state; returns the seconds until the next start."""
        restart = self._policy.note_death(
            asyncio.get_running_loop().time(),
            was_useful=self._was_useful,
            jitter=random.random(),
        )
        self._advance(Event.TRIP if restart.is_probe else Event.DEATH)
        self.reason = f"circuit open: {reason}" if restart.is_probe else reason
        self.restarts += 1
        level = logging.ERROR if restart.is_probe else logging.WARNING
        logger.log(level, "%s; next start in %.2f s", self.reason, restart.delay_s)
        return restart.delay_s

    def _report_death(self, reason: str) -> None:
        """Hand back what the worker held; called when it is reaped, so nothing reads the slab."""
        keys = tuple(self._held)
        self._held.clear()
        self._unran.clear()
        self._is_reserved = False
        self._listener.on_death(keys, reason)

    def _advance(self, event: Event) -> None:
        """Change state; raises ``KeyError`` on an event that does not fit, changing nothing."""
        self._state = TRANSITIONS[self._state, event]

    # messages

    def _on_message(self, message: Up) -> None:
        self._last_sign = asyncio.get_running_loop().time()
        match message:
            case ItemDone() | ItemFailed():
                self._on_answer(message)
            case BatchRan(batch=batch):
                self._unran.discard(batch)
                self._listener.on_batch_ran(message)
                self._listener.on_room()
            case Ready() | StartFailed():
                self._on_loaded(message)

    def _on_answer(self, answer: ItemDone | ItemFailed) -> None:
        dispatched_us = self._held.pop(answer.key, None)
        if dispatched_us is None:
            return
        self._was_useful = True
        self._listener.on_item(answer, dispatched_us)
        if not self._held:
            self._is_reserved = False
            self._listener.on_room()

    def _on_loaded(self, message: Ready | StartFailed) -> None:
        if self._loaded is None or self._loaded.done():
            return
        if isinstance(message, Ready):
            self._loaded.set_result(message)
        else:
            self._loaded.set_exception(StartupError(message.detail))


def _refuse(first: asyncio.Future[None]) -> None:
    if not first.done():
        first.set_exception(Unavailable("closed while starting"))
