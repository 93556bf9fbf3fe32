"""What the workers hold, batch by batch: when would one more begin to run? Pure."""

from __future__ import annotations

import heapq
from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(slots=True, eq=False, kw_only=True)
class Flight:
    """A batch in the workers' hands. ``answer_by`` is when its last answer was expected, without
    overhead; ``began_at`` is None while it waits behind another batch. ``is_measured`` is the
    caller's note that it has learned from the run."""

    size: int
    bucket: int
    run_s: float  # predicted
    answer_by: float
    began_at: float | None
    num_unanswered: int
    has_run: bool = False
    is_measured: bool = False


class Flights:
    """Bounded by what the executor takes: every key is added by ``depart`` and let go once."""

    def __init__(self) -> None:
        self._by_key: dict[int, Flight] = {}
        self._unran: OrderedDict[int, Flight] = OrderedDict()  # by id, oldest first

    def __len__(self) -> int:
        """Items held."""
        return len(self._by_key)

    def depart(
        self, keys: Sequence[int], *, bucket: int, run_s: float, now: float, is_idle: bool
    ) -> None:
        """Workers took these items as one batch; ``is_idle``: it can begin at once."""
        flight = Flight(
            size=len(keys),
            bucket=bucket,
            run_s=run_s,
            answer_by=now + self.wait_s(now, is_idle=is_idle) + run_s,
            began_at=now if is_idle else None,
            num_unanswered=len(keys),
        )
        self._unran[id(flight)] = flight
        self._by_key.update((key, flight) for key in keys)

    def land(self, key: int, now: float) -> Flight | None:
        """The item was answered or lost; returns its batch. The first answer shows that the batch
        has run, so the next one in line begins."""
        flight = self._by_key.pop(key, None)
        if flight is None:
            return None
        flight.num_unanswered -= 1
        if not flight.has_run:
            flight.has_run = True
            del self._unran[id(flight)]
            waiting = (other for other in self._unran.values() if other.began_at is None)
            follower = next(waiting, None)
            if follower is not None:
                follower.began_at = now
        return flight

    def wait_s(self, now: float, *, is_idle: bool) -> float:
        """How long a batch bound now waits for the first worker that will be free."""
        if is_idle:
            return 0.0
        ends = [
            max(flight.began_at + flight.run_s, now)
            for flight in self._unran.values()
            if flight.began_at is not None
        ]
        if not ends:
            return 0.0
        heapq.heapify(ends)
        for flight in self._unran.values():
            if flight.began_at is None:
                heapq.heapreplace(ends, ends[0] + flight.run_s)
        return ends[0] - now
