"""How many workers a model should have (pure)."""

from __future__ import annotations

_GROW_AFTER_S = 1.0  # so long the queue must have been too old
_GROW_PAUSE_S = 3.0  # a new worker needs this long to show in the queue's age
_SHRINK_AFTER_S = 30.0  # so long one worker fewer must have been enough
_CALM_SHARE = 0.25  # of the age that grows: below it nothing waits
_FULL_SHARE = 0.7  # busy share that the remaining workers may reach


class ScaleDecider:
    """One worker more when what waits is too old, one fewer when the rest would do.

    Hysteresis: growing takes a second of a queue older than ``grow_age_s``, shrinking half a
    minute of a queue younger than a quarter of it, with workers so idle that one fewer would be
    at most 70 % busy. In between the number stays.
    """

    def __init__(self, *, min_workers: int, max_workers: int, grow_age_s: float) -> None:
        self._min_workers = min_workers
        self._max_workers = max_workers
        self._grow_age_s = grow_age_s
        self._old_since: float | None = None
        self._calm_since: float | None = None
        self._may_grow_at = float("-inf")

    def decide(self, now: float, *, workers: int, queue_age_s: float, busy_share: float) -> int:
        """The wanted number, at most one away from ``workers``; ask a few times a second.

        Args:
            queue_age_s: how long what is answered now has waited for a worker.
            busy_share: of the workers' time since the last question.
        """
        is_old = queue_age_s > self._grow_age_s
        load = busy_share * workers  # in workers
        fits = workers > 1 and load <= _FULL_SHARE * (workers - 1)
        is_calm = queue_age_s <= _CALM_SHARE * self._grow_age_s and fits
        self._old_since = _since(self._old_since, is_old, now)
        self._calm_since = _since(self._calm_since, is_calm, now)
        if workers < self._min_workers:
            return workers + 1
        if workers < self._max_workers and self._is_due_to_grow(now):
            self._old_since, self._may_grow_at = None, now + _GROW_PAUSE_S
            return workers + 1
        if workers > self._min_workers and _lasts(self._calm_since, _SHRINK_AFTER_S, now):
            self._calm_since = None
            return workers - 1
        return workers

    def _is_due_to_grow(self, now: float) -> bool:
        return now >= self._may_grow_at and _lasts(self._old_since, _GROW_AFTER_S, now)


def _since(before: float | None, holds: bool, now: float) -> float | None:
    if not holds:
        return None
    return now if before is None else before


def _lasts(since: float | None, duration_s: float, now: float) -> bool:
    return since is not None and now - since >= duration_s
