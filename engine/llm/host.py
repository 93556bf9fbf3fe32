"""A language model's worker as the client sees it: one supervised process and its messages."""

from __future__ import annotations

import dataclasses
import logging
from dataclasses import dataclass
from typing import Protocol

from engine.config import LlmConfig
from engine.llm.messages import (
    MAX_UP_BYTES,
    Down,
    FinishLlm,
    Gauges,
    LlmReady,
    LlmStartFailed,
    Refused,
    StartLlm,
    Step,
    Up,
)
from engine.log_format import format_in_use
from engine.manifest import Manifest
from engine.workers.channel import MAX_DOWN_BYTES
from engine.workers.child import Launch
from engine.workers.supervisor import HostState, Supervisor

logger = logging.getLogger(__name__)

SUBMIT_OVERHEAD_BYTES = 64 * 1024
ENVIRONMENT = {
    "TOKENIZERS_PARALLELISM": "false",  # the worker has threads of its own for that
    "HF_HUB_OFFLINE": "1",  # models come from the store, never from the network
}


@dataclass(frozen=True, slots=True, kw_only=True)
class HostStatistics:
    """Snapshot; ``reason`` says why ``ready`` is false."""

    ready: bool
    reason: str
    restarts: int
    rss_bytes: tuple[int, ...] = ()


class HostEvents(Protocol):
    """What a host reports, and asks; on the loop."""

    def is_busy(self) -> bool:
        """Whether an answer is owed; if so, the worker must not be silent for too long."""

    def on_ready(self, ready: LlmReady) -> None:
        """A worker is loaded and warm, the first one or the next."""

    def on_room(self) -> None:
        """The worker's socket takes messages again."""

    def on_step(self, step: Step) -> None: ...
    def on_refused(self, refused: Refused) -> None: ...
    def on_gauges(self, gauges: Gauges) -> None: ...

    def on_death(self) -> None:
        """The worker is gone, with everything it held; ``statistics`` say why."""


class Host(Protocol):
    """One model's worker and what keeps it alive; :class:`LlmHost` in the product."""

    @property
    def can_send(self) -> bool: ...
    @property
    def can_recover(self) -> bool:
        """A worker serves, or soon will."""

    def send(self, message: Down) -> None: ...
    def note_busy(self) -> None:
        """From now on the worker owes an answer."""

    async def start(self) -> None: ...
    async def aclose(self, deadline: float) -> None: ...
    def statistics(self) -> HostStatistics: ...


class HostFactory(Protocol):
    """Only stores; ``Host.start`` begins."""

    def __call__(self, manifest: Manifest, config: LlmConfig, events: HostEvents) -> Host: ...


class LlmHost:
    """Keeps one worker alive; runs on the event loop's thread.

    Each worker is an ``epoch``; what says it is from another one is ignored. Implements
    :class:`engine.workers.supervisor.SlotOwner`.
    """

    def __init__(
        self,
        manifest: Manifest,
        config: LlmConfig,
        events: HostEvents,
        *,
        module: str = "engine.llm.worker",
    ) -> None:
        largest = MAX_DOWN_BYTES - SUBMIT_OVERHEAD_BYTES
        if config.max_prompt_bytes > largest:
            raise ValueError(
                f"max_prompt_bytes must be <= {largest}, got {config.max_prompt_bytes}"
            )
        self._manifest = manifest
        self._config = config
        self._events = events
        self._epoch = 0
        self._ready: LlmReady | None = None
        launch = Launch(
            model=manifest.name,
            module=module,
            messages=Up,
            max_message_bytes=MAX_UP_BYTES,
            environment=ENVIRONMENT,
        )
        self._supervisor = Supervisor(0, launch, config, self)

    @property
    def can_send(self) -> bool:
        return self._supervisor.can_send

    @property
    def can_recover(self) -> bool:
        """A worker serves, or soon will."""
        return self._supervisor.is_serving

    def send(self, message: Down) -> None:
        self._supervisor.send(message)

    def note_busy(self) -> None:
        self._supervisor.note_busy()

    async def start(self) -> None:
        """See :meth:`Supervisor.start`."""
        await self._supervisor.start()

    async def aclose(self, deadline: float) -> None:
        """See :meth:`Supervisor.aclose`."""
        await self._supervisor.aclose(deadline, FinishLlm())

    def statistics(self) -> HostStatistics:
        is_ready = self._supervisor.state is HostState.READY
        return HostStatistics(
            ready=is_ready,
            reason=self._supervisor.reason,
            restarts=self._supervisor.restarts,
            rss_bytes=(self._supervisor.rss_bytes(),) if is_ready else (),
        )

    # from the supervisor

    def first_message(self) -> StartLlm:
        self._epoch += 1
        return StartLlm(
            manifest=self._manifest,
            config=dataclasses.asdict(self._config),
            epoch=self._epoch,
            log_level=logger.getEffectiveLevel(),
            log_format=format_in_use(),
        )

    def is_busy(self) -> bool:
        return self._events.is_busy()

    def on_writable(self) -> None:
        self._events.on_room()

    def on_ready(self) -> None:
        assert self._ready is not None
        self._events.on_ready(self._ready)

    def on_gone(self, reason: str) -> None:
        self._events.on_death()

    def on_message(self, message: Up) -> None:
        match message:
            case Step(epoch=epoch):
                if epoch == self._epoch:
                    self._take_step(message)
            case Refused():
                self._events.on_refused(message)
            case Gauges():
                self._events.on_gauges(message)
            case LlmReady():
                self._ready = message
                self._supervisor.note_loaded()
            case LlmStartFailed(detail=detail):
                self._supervisor.note_load_failed(detail)

    def _take_step(self, step: Step) -> None:
        answers = (item.finish for item in step.items if item.finish is not None)
        if any(finish.reason != "error" for finish in answers):
            self._supervisor.note_useful()
        self._events.on_step(step)
