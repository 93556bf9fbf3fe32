"""Whose turn it is. Pure: ``now`` is an argument.

Fair share is start-time fair queueing (Goyal, Vin, Cheng 1996) inside a priority class: each lane
carries the virtual time at which its next item starts, the smallest goes first, and an item moves
it on by ``1 / weight``. A lane that was idle joins at the class's present virtual time: it can
neither save up turns nor be locked out by lanes that came before it. A lane that was passed over,
because it held nothing that fitted the batch, is owed one turn.
"""

from __future__ import annotations

import heapq
import itertools
from dataclasses import dataclass

from engine.lane import RingLane

AGEING_STEP_S = 0.5  # so long a wait lifts a class past the next more urgent one


@dataclass(slots=True, eq=False)
class LaneState:
    """A lane and its place in its class."""

    ring: RingLane
    share: ClassShare
    start: float = 0.0  # virtual time at which the next item starts
    is_scheduled: bool = False  # has its one entry in the class's heap
    last_offer_at: float = 0.0

    @property
    def turn(self) -> float:
        """What an item costs in virtual time."""
        return 1.0 / self.ring.spec.weight


class ClassShare:
    """Fair share between the lanes of one priority class of this ``rank`` (0 is most urgent)."""

    def __init__(self, rank: int) -> None:
        self._rank = rank
        self._virtual_time = 0.0
        self._latest_finish = 0.0  # of any item served so far
        self._heap: list[tuple[float, int, LaneState]] = []  # (start, order of joining, lane)
        self._order = itertools.count()
        self._waiting_since: float | None = None  # last served, or first offered since

    def __len__(self) -> int:
        """Scheduled lanes."""
        return len(self._heap)

    def has_work(self) -> bool:
        """Drops lanes that were emptied otherwise (cancelled, expired) off the top.

        Such an entry stays until it reaches the top. The virtual time has not passed its start
        until then, so a lane that fills up again in between keeps its rightful place.
        """
        heap = self._heap
        while heap and len(heap[0][2].ring) == 0:
            heapq.heappop(heap)[2].is_scheduled = False
        if heap:
            return True
        # An idle class forgives: whoever comes next starts level with everybody else.
        self._virtual_time = self._latest_finish
        return False

    def urgency(self, now: float) -> float:
        """Smaller is more urgent. A class that is not served rises by one rank per ageing step:
        the lowest of three waits at most two steps and the batch that runs then.

        It is the wait of the class and not of its oldest item: replacing frames would reset the
        latter for ever, and a long backlog that has aged would shut out the urgent class.
        """
        waiting_since = now if self._waiting_since is None else self._waiting_since
        return self._rank - (now - waiting_since) / AGEING_STEP_S

    def join(self, lane: LaneState, now: float) -> None:
        """The lane holds something."""
        if self._waiting_since is None:
            self._waiting_since = now
        if not lane.is_scheduled:
            lane.start = max(lane.start, self._virtual_time)
            self._schedule(lane)

    def head(self) -> LaneState:
        """Whose turn it is; the caller knows that there is work."""
        return self._heap[0][2]

    def pop(self) -> LaneState:
        lane = heapq.heappop(self._heap)[2]
        lane.is_scheduled = False
        return lane

    def restore(self, lane: LaneState) -> None:
        """The lane, popped, held nothing that fitted."""
        lane.start = max(lane.start, self._virtual_time - lane.turn)
        self._schedule(lane)

    def charge(self, lane: LaneState, now: float) -> None:
        """The lane, just popped, was served one item."""
        self._virtual_time = max(self._virtual_time, lane.start)
        lane.start += lane.turn
        self._latest_finish = max(self._latest_finish, lane.start)
        if len(lane.ring) > 0:
            self._schedule(lane)
        # Only a service ends the wait: expiring and offering again must not.
        self._waiting_since = now if self.has_work() else None

    def forget(self, lane: LaneState) -> None:
        """The lane is closed. O(lanes), so that the heap never holds more than live lanes."""
        self._heap = [scheduled for scheduled in self._heap if scheduled[2] is not lane]
        heapq.heapify(self._heap)

    def _schedule(self, lane: LaneState) -> None:
        lane.is_scheduled = True
        heapq.heappush(self._heap, (lane.start, next(self._order), lane))
