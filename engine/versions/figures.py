"""What the items of one version experienced lately (pure)."""

from __future__ import annotations

import math
import statistics
from collections import deque
from collections.abc import Mapping
from typing import NamedTuple

from engine.types import Dropped, DropReason, Failed, Outcome, Result

_WINDOW = 512  # outcomes that errors and latency look back on
_QUEUE_WINDOW = 32  # and that the queue's age looks back on
_QUEUE_HORIZON_S = 1.0
# The item waited for a worker until it was of no more use.
_WAITED_TOO_LONG = frozenset({DropReason.SUPERSEDED, DropReason.STALE, DropReason.DEADLINE})


class Runs(NamedTuple):
    """Results that ran in batches of one size: how many, and the median run time."""

    results: int
    run_s: float


class Experience(NamedTuple):
    """What the last ``answers`` were like. Run times are kept apart by batch size, because the
    load decides on that and not the version."""

    answers: int
    bad_share: float  # failed, or not answered in time
    runs: Mapping[int, Runs]  # by batch size


class Figures:
    """Observes outcomes as they are told; O(1) each, the questions sort a window."""

    def __init__(self) -> None:
        self._is_bad: deque[bool] = deque(maxlen=_WINDOW)
        self._runs_us: deque[tuple[int, int]] = deque(maxlen=_WINDOW)  # (batch size, run)
        self._waits_s: deque[tuple[float, float]] = deque(maxlen=_QUEUE_WINDOW)  # (told at, wait)

    def observe(self, outcome: Outcome, now: float) -> None:
        """An item was answered at ``now``; withdrawn and replaced ones say nothing of quality."""
        match outcome:
            case Result(timing=timing, batch_size=size):
                self._is_bad.append(False)
                self._runs_us.append((size, timing.run))
                self._waits_s.append((now, timing.queue / 1e6))
            case Failed():
                self._is_bad.append(True)
            case Dropped(reason):
                if reason in (DropReason.DEADLINE, DropReason.WORKER_LOST):
                    self._is_bad.append(True)
                if reason in _WAITED_TOO_LONG:
                    self._waits_s.append((now, math.inf))

    def experience(self) -> Experience:
        answers = len(self._is_bad)
        by_size: dict[int, list[int]] = {}
        for size, run_us in self._runs_us:
            by_size.setdefault(size, []).append(run_us)
        return Experience(
            answers=answers,
            bad_share=sum(self._is_bad) / answers if answers else 0.0,
            runs={
                size: Runs(len(runs_us), statistics.median(runs_us) / 1e6)
                for size, runs_us in by_size.items()
            },
        )

    def queue_age_s(self, now: float) -> float:
        """How long what was answered in the last second had waited for a worker (median); 0 when
        nothing was. What was given up waiting counts as infinitely old."""
        waits_s = [wait_s for told_at, wait_s in self._waits_s if now - told_at < _QUEUE_HORIZON_S]
        return statistics.median_low(waits_s) if waits_s else 0.0
