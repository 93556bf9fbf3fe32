"""Looks after a pool's workers: replaces what is worn out, and lets the queue decide how many."""

from __future__ import annotations

import logging

from engine.config import ModelConfig
from engine.workers.host import WorkerHost
from engine.workers.scaling import ScaleDecider
from engine.workers.staff import Staff
from engine.workers.supervisor import HostState
from engine.workers.wear import WARNING_SHARE, Patience, Wear, WearLimits

logger = logging.getLogger(__name__)

WEAR_INTERVAL_S = 1.0  # between two looks at the workers' memory and age
MANY_YOUNG = 5


class Tending:
    """Asks the deciders and tells the :class:`Staff`; ``look`` is called a few times a second."""

    def __init__(self, model: str, config: ModelConfig, staff: Staff) -> None:
        self.memory_share = 0.0  # of the worker that is nearest to its ceiling
        self._model = model
        self._staff = staff
        self._wear = WearLimits(
            max_memory_bytes=config.max_worker_memory_mb << 20, max_age_s=config.max_worker_age_s
        )
        self._scaling: ScaleDecider | None = None
        if config.max_workers:
            self._scaling = ScaleDecider(
                min_workers=config.min_workers,
                max_workers=config.max_workers,
                grow_age_s=config.scale_queue_age_millis / 1000,
            )
        self._has_wear_limit = bool(config.max_worker_memory_mb or config.max_worker_age_s)
        self._patience = Patience()
        self._next_wear_at = 0.0
        self._last_look_at: float | None = None
        self._ran_s = 0.0  # of all workers, since the last look

    def note_run(self, run_s: float) -> None:
        """A batch kept a worker busy for so long."""
        self._ran_s += run_s

    def look(self, now: float, queue_age_s: float) -> None:
        """Begin at most one change."""
        may_change = self._staff.can_change(now)
        if self._has_wear_limit and now >= self._next_wear_at:
            self._next_wear_at = now + WEAR_INTERVAL_S
            worn = self._find_worn()
            if worn is not None and may_change and self._patience.allows(now):
                self._replace(*worn, now)
                return
        if self._scaling is not None:
            self._scale(self._scaling, now, queue_age_s, may_change)

    def _replace(self, host: WorkerHost, wear: Wear, now: float) -> None:
        self._patience.note_replaced(now, host.age_s())
        if self._patience.num_young == MANY_YOUNG:
            logger.error(
                "%s: %d workers in a row wore out soon after their start (%s): is the limit "
                "below what the model needs?",
                self._model,
                MANY_YOUNG,
                wear.value,
            )
        self._staff.replace(host, wear)

    def _scale(
        self, scaling: ScaleDecider, now: float, queue_age_s: float, may_change: bool
    ) -> None:
        workers = len(self._staff.hosts)
        busy_share = self._busy_share(now, workers)
        if not may_change or busy_share is None:
            return
        wanted = scaling.decide(
            now, workers=workers, queue_age_s=queue_age_s, busy_share=busy_share
        )
        if wanted != workers:
            logger.info("%s: %d workers instead of %d", self._model, wanted, workers)
            change = self._staff.hire if wanted > workers else self._staff.retire
            change()

    def _busy_share(self, now: float, workers: int) -> float | None:
        """Of the time since the last look; None at the first."""
        last, self._last_look_at = self._last_look_at, now
        ran_s, self._ran_s = self._ran_s, 0.0
        if last is None or now <= last or workers == 0:
            return None
        return ran_s / (now - last) / workers

    def _find_worn(self) -> tuple[WorkerHost, Wear] | None:
        """The worker that needs to be replaced most; measures them all."""
        before, self.memory_share = self.memory_share, 0.0
        worn: tuple[WorkerHost, Wear] | None = None
        for host in self._staff.hosts:
            if host.state is not HostState.READY:
                continue
            own_bytes = host.own_bytes()
            share = self._wear.memory_share(own_bytes)
            wear = self._wear.judge(age_s=host.age_s(), memory_bytes=own_bytes)
            if wear is not None and (worn is None or share > self.memory_share):
                worn = (host, wear)
            self.memory_share = max(self.memory_share, share)
        if before < WARNING_SHARE <= self.memory_share:
            logger.warning(
                "%s: a worker's memory is at %.0f %% of max_worker_memory_mb",
                self._model,
                100 * self.memory_share,
            )
        return worn
