"""The one place that decides what a gateway gives up under pressure, and tells everybody."""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial

from engine.base import ModelStatistics
from engine.ticks import next_tick
from engine.types import Priority
from gateway.errors import ProblemKind, RequestProblem
from gateway.session.clock import Clock, Timer
from gateway.stream.service_level import Level, ServiceLevel, Signals

TICK_S = 0.25
MAX_LOOP_LAG_S = 0.02  # a tick of a fast stream is as long
MAX_STEP_EXCESS = 0.2  # of a language model's steps, over the time that ``min_rate`` leaves them
LEAST_ALLOWED_S = 0.5
RETRY_AFTER_MS = 2000  # a shed class is not looked for again within seconds
_WAIT_FADES_S = 2.0  # a wait that nothing confirms counts for half as much after each of these
_SHED_FROM = {Priority.BACKGROUND: Level.SHED_BACKGROUND, Priority.STANDARD: Level.SHED_STANDARD}

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class PressureStatistics:
    """Snapshot for metrics; ``shed`` counts refusals by class."""

    level: Level
    signals: Signals
    seconds: Mapping[Level, float]
    shed: Mapping[Priority, int]


@dataclass(frozen=True, slots=True, kw_only=True)
class Readings:
    """What a tick looks at; all of it is cheap to get."""

    models: tuple[ModelStatistics, ...]
    outbox_share: float  # of the bytes that may wait for readers
    loop_lag_s: float  # mean, while it lasts


class Pressure:
    """Holds the service level of the process; belongs to the loop's thread.

    Sessions and handlers ask it before they take new work, and tell it how long work waited. What
    is accepted is finished whatever the level; ``realtime`` is never shed. ``start`` makes it tick;
    without that it stays at ``NORMAL``. ``on_change`` is told every new level.
    """

    def __init__(
        self,
        *,
        max_wait_s: float = 10.0,
        min_rate: float = 0.0,
        on_change: Callable[[Level], None] | None = None,
    ) -> None:
        """``max_wait_s`` and ``min_rate`` (tokens/s, 0: none) are what the language models' own
        configuration promises."""
        self._max_wait_s = max_wait_s
        self._min_rate = min_rate
        self._on_change = on_change
        self._service = ServiceLevel(0.0)
        self._signals = Signals()
        # By model, of which an engine has a few; fading, the longest of late.
        self._waits: dict[tuple[str, Priority], float] = {}
        self._shed: Counter[Priority] = Counter()
        self._timer: Timer | None = None

    @property
    def level(self) -> Level:
        return self._service.level

    def service_level(self) -> int:
        """For engines: 0 while there is no need, and one more for each step that calls for a
        cheaper variant of a model."""
        return max(0, self._service.level - Level.LESS_INPUT)

    @property
    def allows_extras(self) -> bool:
        return self._service.level < Level.NO_EXTRAS

    @property
    def wants_less_input(self) -> bool:
        return self._service.level >= Level.LESS_INPUT

    def check(self, priority: Priority) -> None:
        """To be called before new work of that class is taken.

        Raises:
            RequestProblem: OVERLOADED, the class is shed; counted.
        """
        shed_from = _SHED_FROM.get(priority)
        if shed_from is not None and self._service.level >= shed_from:
            self._shed[priority] += 1
            detail = f"{priority.value} is not served at the moment"
            raise RequestProblem(ProblemKind.OVERLOADED, detail, retry_after_ms=RETRY_AFTER_MS)

    def note_wait(self, model: str, priority: Priority, *, wait_s: float, allowed_s: float) -> None:
        """An item was answered, or given up, that long after it came; its deadline allowed
        ``allowed_s``. A client's own haste is no pressure: less than ``LEAST_ALLOWED_S`` is not
        asked for."""
        key, share = (model, priority), wait_s / max(allowed_s, LEAST_ALLOWED_S)
        if share > self._waits.get(key, 0.0):
            self._waits[key] = share

    def start(self, clock: Clock, read: Callable[[], Readings]) -> None:
        """Tick on ``clock`` from now on until ``stop``; once."""
        self._service = ServiceLevel(clock.now())
        self._arm(clock, read)

    def stop(self) -> None:
        """Idempotent."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def statistics(self) -> PressureStatistics:
        return PressureStatistics(
            level=self._service.level,
            signals=self._signals,
            seconds=dict(self._service.seconds),
            shed=dict(self._shed),
        )

    def update(self, readings: Readings, now: float) -> None:
        """Look at the load ``now`` and move the level if it is time to."""
        self._signals = Signals(
            realtime=self._wait_of(Priority.REALTIME),
            standard=self._wait_of(Priority.STANDARD),
            outbox=readings.outbox_share,
            loop=readings.loop_lag_s / MAX_LOOP_LAG_S,
            prompts=max(map(self._prompt_load, readings.models), default=0.0),
        )
        fading = 0.5 ** (TICK_S / _WAIT_FADES_S)
        self._waits = {key: share * fading for key, share in self._waits.items()}
        before = self._service.level
        level = self._service.update(self._signals, now)
        if level is not before:
            self._log(level, is_up=level > before)
            if self._on_change is not None:
                self._on_change(level)

    def _log(self, level: Level, *, is_up: bool) -> None:
        percent = 100 * self._signals.load(level)
        if is_up:
            cause = self._signals.cause(level)
            logger.warning("service level rises to %s, %s at %.0f %%", level.label, cause, percent)
        else:
            logger.info("service level eases to %s, load at %.0f %%", level.label, percent)

    def _arm(self, clock: Clock, read: Callable[[], Readings]) -> None:
        tick = partial(self._tick, clock, read)
        self._timer = clock.call_at(next_tick(clock.now(), TICK_S), tick)

    def _tick(self, clock: Clock, read: Callable[[], Readings]) -> None:
        self._arm(clock, read)  # first: a reading that fails must not stop the ticks
        self.update(read(), clock.now())

    def _wait_of(self, priority: Priority) -> float:
        waits = (share for (_, of), share in self._waits.items() if of is priority)
        return max(waits, default=0.0)

    def _prompt_load(self, model: ModelStatistics) -> float:
        llm = model.llm
        if llm is None:
            return 0.0
        wait = llm.scheduler_queue_latency_99 / self._max_wait_s if llm.waiting else 0.0
        if llm.running == 0:
            return wait  # the last steps were some time ago
        # Admission fills steps up to what ``min_rate`` allows: that much is no pressure.
        excess = self._min_rate * llm.step_p50_s - 1.0
        return max(wait, excess / MAX_STEP_EXCESS)
