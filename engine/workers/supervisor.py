"""Keeps one worker slot staffed: start, watch, restart with backoff, give up for a while, close."""

from __future__ import annotations

import asyncio
import logging
import random
from collections.abc import Callable
from enum import Enum
from typing import Any, Protocol

import msgspec

from engine.errors import EngineError, StartupError, Unavailable
from engine.workers.child import Child, Launch
from engine.workers.restart import RestartPolicy

logger = logging.getLogger(__name__)

MAX_LOOK_S = 5.0  # between two looks at whether a worker hangs


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


class SupervisionConfig(Protocol):
    """The part of a model's configuration that is about its workers' lives."""

    @property
    def start_timeout_s(self) -> float: ...
    @property
    def stall_timeout_s(self) -> float: ...
    @property
    def max_restarts(self) -> int: ...
    @property
    def restart_window_s(self) -> float: ...


class SlotOwner(Protocol):
    """What a supervisor asks of the owner of its slot, and tells it; always on the loop."""

    def first_message(self) -> msgspec.Struct:
        """What a new worker is sent; asked once per worker."""

    def on_message(self, message: Any) -> None:
        """The worker said something. Of its loading the owner tells ``note_loaded`` or
        ``note_load_failed``; of its answers, ``note_useful``."""

    def on_writable(self) -> None:
        """The control socket takes messages again."""

    def on_ready(self) -> None:
        """The worker is loaded and warm."""

    def on_gone(self, reason: str) -> None:
        """The worker is reaped and the slot in its next state."""

    def is_busy(self) -> bool:
        """Whether the worker owes an answer; if so, it must not be silent for too long."""


class Supervisor:
    """One worker slot. All methods run on the event loop that ``start`` ran on.

    ``start`` waits for the first worker and raises if that cannot load; later deaths are handled
    here and reported. Every state can be left by ``aclose``. ``stall_limit_s`` tells how long the
    worker may be silent now; by default that is the configuration's ``stall_timeout_s``.
    """

    def __init__(
        self,
        index: int,
        launch: Launch,
        config: SupervisionConfig,
        owner: SlotOwner,
        stall_limit_s: Callable[[], float] | None = None,
    ) -> None:
        self.reason = "not started"  # why it is not ready, readable; "" when it is
        self.restarts = 0
        self._index = index
        self._launch = launch
        self._config = config
        self._owner = owner
        self._stall_limit_s = stall_limit_s or (lambda: config.stall_timeout_s)
        self._policy = RestartPolicy(config.max_restarts, config.restart_window_s)
        self._state = HostState.NEW
        self._child: Child | None = None
        self._task: asyncio.Task[None] | None = None
        self._loaded: asyncio.Future[None] | None = None
        self._child_cpu_s = 0.0  # as of the last look
        self._gone_cpu_s = 0.0
        self._last_sign = 0.0  # loop time of the last message, or when it became busy
        self._was_useful = False
        self._next_start_at = 0.0  # loop time

    @property
    def state(self) -> HostState:
        return self._state

    @property
    def is_serving(self) -> bool:
        """Ready or, with the circuit closed, soon ready again."""
        return self._state in (HostState.STARTING, HostState.READY, HostState.BACKOFF)

    @property
    def probe_at(self) -> float | None:
        """Loop time of the next attempt while the circuit is open, else None."""
        return self._next_start_at if self._state is HostState.OPEN else None

    @property
    def can_send(self) -> bool:
        """A worker is ready and its socket takes messages."""
        is_ready = self._state is HostState.READY and self._child is not None
        return is_ready and self._child is not None and self._child.is_writable

    @property
    def last_sign(self) -> float:
        """Loop time of the worker's last message, or of when it became busy."""
        return self._last_sign

    def rss_bytes(self) -> int:
        """Resident memory of the worker, 0 without one."""
        return self._child.rss_bytes() if self._child is not None else 0

    def cpu_s(self) -> float:
        """Processor time of all workers that the slot has had, as far as it was asked for."""
        if self._child is not None:
            self._child_cpu_s = max(self._child_cpu_s, self._child.cpu_s())
        return self._gone_cpu_s + self._child_cpu_s

    def own_bytes(self) -> int:
        """See :meth:`Child.own_bytes`; 0 without a worker."""
        return self._child.own_bytes() if self._child is not None else 0

    def age_s(self) -> float:
        """Since the worker was started, 0 without one."""
        return self._child.age_s() if self._child is not None else 0.0

    def send(self, message: msgspec.Struct) -> None:
        """Hand over one message; lost without a trace when the worker is gone."""
        if self._child is not None:
            self._child.send(message)

    def note_busy(self) -> None:
        """The worker owed nothing and now does: its silence counts from now."""
        self._last_sign = asyncio.get_running_loop().time()

    def note_useful(self) -> None:
        """The worker answered something."""
        self._was_useful = True

    def note_loaded(self) -> None:
        if self._loaded is not None and not self._loaded.done():
            self._loaded.set_result(None)

    def note_load_failed(self, detail: str) -> None:
        if self._loaded is not None and not self._loaded.done():
            self._loaded.set_exception(StartupError(detail))

    async def start(self) -> None:
        """Start the first worker and wait until it is ready.

        Raises:
            StartupError: it could not load, or not within ``start_timeout_s``.
            Unavailable: the slot was closed meanwhile.
        """
        first: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        name = f"worker-host-{self._launch.model}-{self._index}"
        self._task = asyncio.create_task(self._supervise(first), name=name)
        # Not in the task: cancelled before its first step, it would tell nobody.
        self._task.add_done_callback(lambda _: _refuse(first))
        try:
            await first
        finally:
            first.cancel()

    async def aclose(self, deadline: float, last_message: msgspec.Struct) -> None:
        """Send a ready worker ``last_message`` and let it finish until ``deadline`` (loop time),
        then end it.

        Afterwards no process and no descriptor is left. Idempotent; called again meanwhile, it
        ends the worker at once.
        """
        is_ready = self._state is HostState.READY
        self._advance(Event.CLOSE)
        self.reason = "closed"
        if self._task is None:
            return
        if is_ready and self._child is not None:
            self._child.send(last_message)
            await self._child.wait_exit(deadline - asyncio.get_running_loop().time())
        self._task.cancel()
        await asyncio.wait({self._task})  # bounded: Child.stop is

    async def _supervise(self, first: asyncio.Future[None]) -> None:
        """The slot's task: one worker after another until closed."""
        reason = "closed"
        try:
            while self._state is not HostState.CLOSED:
                reason = await self._run_worker(first)
                if not self._is_closed():
                    delay_s = self._note_death(reason)
                    self._owner.on_gone(reason)
                    await asyncio.sleep(delay_s)
        except StartupError as error:
            first.set_exception(error)
        except Exception:
            logger.critical("the supervisor of worker %d failed", self._index, exc_info=True)
            reason = self.reason = "internal error in its supervisor"
        finally:
            self._advance(Event.CLOSE)
            self._owner.on_gone(reason)

    def _is_closed(self) -> bool:
        return self._state is HostState.CLOSED

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
        child = self._child = await Child.spawn(
            self._index, self._launch, self._on_message, self._owner.on_writable
        )
        try:
            child.send(self._owner.first_message())
            await self._wait_loaded(child, self._loaded)
            self._advance(Event.READY)
            self.reason = ""
            logger.info("%s of %s is ready", child.name, self._launch.model)
            if not first.done():
                first.set_result(None)
            self._owner.on_ready()
            return f"{child.name} {await self._watch(child)}"
        finally:
            self._loaded = None
            await _stop(child)
            self._gone_cpu_s += self._child_cpu_s
            self._child_cpu_s = 0.0
            self._child = None

    async def _wait_loaded(self, child: Child, loaded: asyncio.Future[None]) -> None:
        either: list[asyncio.Future[Any]] = [loaded, child.exited]
        limit_s = self._config.start_timeout_s
        await asyncio.wait(either, timeout=limit_s, return_when=asyncio.FIRST_COMPLETED)
        if loaded.done():
            return loaded.result()
        model = self._launch.model
        if child.exited.done():
            raise StartupError(f"model {model}: {child.name} {child.exited.result()} while loading")
        raise StartupError(
            f"model {model}: {child.name} was not ready within start_timeout_s = {limit_s:g} s"
        )

    async def _watch(self, child: Child) -> str:
        """Wait for the end; a worker that owes answers and is silent for too long is killed."""
        loop = asyncio.get_running_loop()
        while not await child.wait_exit(min(MAX_LOOK_S, self._stall_limit_s() / 4)):
            limit_s = self._stall_limit_s()
            if self._owner.is_busy() and loop.time() - self._last_sign > limit_s:
                child.kill(f"was killed: it hung, no sign of life for {limit_s:g} s")
        return child.exited.result()

    def _note_death(self, reason: str) -> float:
        """Choose the next state; returns the seconds until the next start."""
        now = asyncio.get_running_loop().time()
        restart = self._policy.note_death(
            now,
            was_useful=self._was_useful,
            jitter=random.random(),
        )
        self._advance(Event.TRIP if restart.is_probe else Event.DEATH)
        self.reason = f"circuit open: {reason}" if restart.is_probe else reason
        self.restarts += 1
        self._next_start_at = now + restart.delay_s
        level = logging.ERROR if restart.is_probe else logging.WARNING
        logger.log(level, "%s; next start in %.2f s", self.reason, restart.delay_s)
        return restart.delay_s

    def _advance(self, event: Event) -> None:
        """Change state; raises ``KeyError`` on an event that does not fit, changing nothing."""
        self._state = TRANSITIONS[self._state, event]

    def _on_message(self, message: Any) -> None:
        self._owner.on_message(message)
        self._last_sign = asyncio.get_running_loop().time()


async def _stop(child: Child) -> None:
    """Stop it whoever cancels us meanwhile: it is bounded, and no process may be left."""
    stopping = asyncio.create_task(child.stop(), name=f"stop {child.name}")
    try:
        await asyncio.shield(stopping)
    except asyncio.CancelledError:
        await asyncio.wait({stopping})
        raise


def _refuse(first: asyncio.Future[None]) -> None:
    if not first.done():
        first.set_exception(Unavailable("closed while starting"))
