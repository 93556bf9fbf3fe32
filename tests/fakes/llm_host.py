"""A host without a process, for the virtual clock: an :class:`EchoLlm` in the same loop."""

from __future__ import annotations

import asyncio
from collections import deque

from engine.config import LlmConfig
from engine.errors import StartupError
from engine.llm.host import HostEvents, HostStatistics
from engine.llm.messages import (
    CancelKeys,
    Down,
    Gauges,
    LlmReady,
    Refused,
    ReleaseTable,
    Step,
    StepItem,
    Submit,
    Up,
)
from engine.manifest import Manifest
from tests.fakes.echo_llm import Crash, EchoLlm

READY = LlmReady(
    device="cpu", weights="none", num_blocks=9, block_size=16, max_seq_length=64, vocabulary=0
)


class FakeLlmHost:
    """Implements ``engine.llm.host.Host``. Tests steer it.

    ``block``: no step is made until ``unblock``. ``pause`` and ``resume``: its socket takes
    nothing. A crash is a ``die``; after it, ``restart_s`` later, a new worker is ready, unless
    ``can_recover`` is false. ``sent`` is all it was sent, of all workers.
    """

    def __init__(
        self, manifest: Manifest, config: LlmConfig, events: HostEvents, *, step_s: float = 0.001
    ) -> None:
        self.sent: deque[Down] = deque(maxlen=10_000)
        self.can_recover = False
        self.start_error: StartupError | None = None
        self.restart_s = 0.1
        self.busy_since: float | None = None
        self.is_started = False
        self.epoch = 0
        self.llm: EchoLlm | None = None
        self._events = events
        self._step_s = step_s
        self._is_paused = False
        self._is_blocked = False
        self._timer: asyncio.TimerHandle | None = None
        self._restarts = 0
        self._reason = "not started"

    @property
    def can_send(self) -> bool:
        return self.llm is not None and not self._is_paused

    def send(self, message: Down) -> None:
        assert self.llm is not None
        self.sent.append(message)
        match message:
            case Submit():
                # As with a socket: nothing comes back before the sender has finished its turn.
                asyncio.get_running_loop().call_soon(self._submit, self.llm, message)
            case CancelKeys():
                self.llm.cancel(message)

    def note_busy(self) -> None:
        self.busy_since = asyncio.get_running_loop().time()

    async def start(self) -> None:
        if self.start_error is not None:
            raise self.start_error
        await asyncio.sleep(0.01)
        self.is_started = True
        self._recover()

    async def aclose(self, deadline: float) -> None:
        self.is_started = self.can_recover = False
        self._reason = "closed"
        if self.llm is not None:
            self._lose()

    def statistics(self) -> HostStatistics:
        return HostStatistics(
            ready=self.llm is not None, reason=self._reason, restarts=self._restarts
        )

    # --- steering, for tests

    def block(self) -> None:
        self._is_blocked = True

    def unblock(self) -> None:
        self._is_blocked = False
        self._schedule()

    def pause(self) -> None:
        self._is_paused = True

    def resume(self) -> None:
        self._is_paused = False
        self._events.on_room()

    def die(self, *, can_recover: bool = True) -> None:
        self._restarts += 1
        self._reason = "was killed by SIGKILL" if can_recover else "circuit open: SIGKILL"
        self.can_recover = can_recover
        self._lose()
        asyncio.get_running_loop().call_later(self.restart_s, self._recover)

    def say(self, message: Up) -> None:
        """Of its own accord."""
        self._tell(message)

    def say_step(self, *items: StepItem) -> None:
        self._tell(Step(self.epoch, 0, items))

    @property
    def releases(self) -> list[ReleaseTable]:
        return [message for message in self.sent if isinstance(message, ReleaseTable)]

    # --- the worker

    def _lose(self) -> None:
        self.llm = None
        self._events.on_death()

    def _recover(self) -> None:
        if self.is_started:
            self.epoch += 1
            self.llm = EchoLlm(self.epoch, self._tell)
            self.can_recover, self._reason = True, ""
            self._events.on_ready(READY)

    def _submit(self, llm: EchoLlm, message: Submit) -> None:
        if llm is self.llm:
            try:
                llm.submit(message)
            except Crash:
                self.die()
            self._schedule()

    def _schedule(self) -> None:
        if self._timer is None and self.llm is not None and not self.llm.is_idle:
            loop = asyncio.get_running_loop()
            self._timer = loop.call_later(self._step_s, self._step)

    def _step(self) -> None:
        self._timer = None
        if self.llm is None or self._is_blocked:
            return
        try:
            self.llm.step()
        except Crash:
            self.die()
        self._schedule()

    def _tell(self, message: Up) -> None:
        match message:
            case Step():
                self._events.on_step(message)
            case Refused():
                self._events.on_refused(message)
            case Gauges():
                self._events.on_gauges(message)
