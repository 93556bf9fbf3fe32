"""The receipts of one model."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field

from engine.batching.hops import Hops
from engine.types import Cancelled, Dropped, Failed, Outcome, Result


@dataclass(slots=True)
class Counters:
    """``accepted == answered + in flight`` at every moment; counters only grow.

    ``batches`` counts dispatches, ``retried`` items that ran again alone, ``discarded`` late
    answers to items that had been given up while a worker held them, ``run_s`` the seconds that
    batches ran, all workers together.
    """

    accepted: int = 0
    results: int = 0
    dropped: Counter[str] = field(default_factory=Counter)  # by DropReason value
    failed: int = 0
    cancelled: int = 0
    batches: int = 0
    retried: int = 0
    discarded: int = 0
    run_s: float = 0.0
    hops: Hops = field(default_factory=Hops)

    @property
    def answered(self) -> int:
        return self.results + self.dropped.total() + self.failed + self.cancelled

    def count(self, outcome: Outcome) -> None:
        match outcome:
            case Result(timing=timing):
                self.results += 1
                self.hops.observe(timing)
            case Dropped(reason):
                self.dropped[reason.value] += 1
            case Failed():
                self.failed += 1
            case Cancelled():
                self.cancelled += 1
