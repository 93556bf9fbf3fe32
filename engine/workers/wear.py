"""When a worker has served long enough, or grown too large (pure)."""

from __future__ import annotations

from enum import Enum

WARNING_SHARE = 0.8  # of the memory ceiling
_YOUNG_S = 30.0
_FIRST_PAUSE_S = 0.5
_MAX_PAUSE_S = 10.0


class Wear(Enum):
    """Why a worker is replaced by a fresh one; the values name it in logs and metrics."""

    MEMORY = "memory"
    AGE = "age"


class WearLimits:
    """``max_memory_bytes`` counts what is the worker's own; 0 switches a limit off."""

    def __init__(self, *, max_memory_bytes: int, max_age_s: float) -> None:
        self._max_memory_bytes = max_memory_bytes
        self._max_age_s = max_age_s

    def memory_share(self, memory_bytes: int) -> float:
        """Of the ceiling; from 1 on the worker is replaced. 0 without a ceiling."""
        return memory_bytes / self._max_memory_bytes if self._max_memory_bytes else 0.0

    def judge(self, *, age_s: float, memory_bytes: int) -> Wear | None:
        """Why to replace the worker, or None to keep it."""
        if self.memory_share(memory_bytes) >= 1.0:
            return Wear.MEMORY
        if self._max_age_s and age_s >= self._max_age_s:
            return Wear.AGE
        return None


class Patience:
    """When the next worker may be replaced. Workers that wear out young make it wait longer: a
    ceiling below what the model needs must not keep the machine busy with starting workers."""

    def __init__(self) -> None:
        self.num_young = 0  # replaced in a row, all soon after their start
        self._next_at = float("-inf")

    def allows(self, now: float) -> bool:
        return now >= self._next_at

    def note_replaced(self, now: float, age_s: float) -> None:
        """A worker of that age is being replaced."""
        if age_s >= _YOUNG_S:
            self.num_young = 0
            return
        self._next_at = now + min(_MAX_PAUSE_S, _FIRST_PAUSE_S * 2.0 ** min(self.num_young, 10))
        self.num_young += 1
