"""Which items make the next batch, and when it closes. Pure: ``now`` is an argument.

Fair share is start-time fair queueing (Goyal, Vin, Cheng 1996) inside a priority class: each lane
carries the virtual time at which its next item starts, the smallest goes first, and an item moves
it on by ``1 / weight``. A lane that was idle joins at the class's present virtual time: it can
neither save up turns nor be locked out by lanes that came before it.
"""

from __future__ import annotations

import heapq
import itertools
from collections import OrderedDict
from dataclasses import dataclass

from engine.batching.cost import CostModel
from engine.errors import Overloaded
from engine.lane import Entry, RingLane
from engine.types import LaneSpec, Priority

ACTIVITY_HORIZON_S = 2.0  # a lane is live while its last offer is no older than this
AGEING_STEP_S = 0.5  # so long a wait lifts a class past the next more urgent one
_MIN_RETRY_S = 0.05


@dataclass(slots=True, eq=False)
class _LaneState:
    ring: RingLane
    share: _ClassShare
    start: float = 0.0  # virtual time at which the next item starts
    is_scheduled: bool = False  # has its one entry in the class's heap
    last_offer_at: float = 0.0


class BatchPolicy:
    """Picks batches from the lanes of one model.

    Holds at most ``max_queued`` items over all lanes. The caller takes expired items out before
    it asks for a batch, and asks only while a worker has room, so that nothing is bound early.
    """

    def __init__(
        self, *, max_batch_size: int, window_s: float, max_queued: int, cost: CostModel
    ) -> None:
        self._max_batch_size = max_batch_size
        self._window_s = window_s
        self._max_queued = max_queued
        self._cost = cost
        self._shares = {priority: _ClassShare(priority.rank) for priority in Priority}
        self._lanes: dict[int, _LaneState] = {}
        self._backlogged: dict[int, _LaneState] = {}  # lanes that hold something
        self._recent: OrderedDict[int, _LaneState] = OrderedDict()  # by last offer, oldest first
        self._num_queued = 0

    @property
    def num_queued(self) -> int:
        return self._num_queued

    @property
    def num_lanes(self) -> int:
        return len(self._lanes)

    def add_lane(self, lane_id: int, spec: LaneSpec) -> None:
        self._lanes[lane_id] = _LaneState(RingLane(spec), self._shares[spec.priority])

    def remove_lane(self, lane_id: int) -> None:
        """Forget the lane and what it still holds."""
        lane = self._lanes.pop(lane_id)
        self._recent.pop(lane_id, None)
        self._backlogged.pop(lane_id, None)
        lane.share.forget(lane)
        self._num_queued -= len(lane.ring)

    def offer(self, entry: Entry) -> Entry | None:
        """Queue ``entry`` in its lane; returns the one it displaced, if any.

        Raises:
            Overloaded: the lane keeps what it has, or the model's total is reached; nothing was
                queued.
        """
        lane = self._lanes[entry.lane_id]
        # A lane that is not empty may replace what it holds even when the model is full.
        grows = len(lane.ring) < lane.ring.spec.capacity
        if grows and self._num_queued >= self._max_queued:
            raise Overloaded(
                f"the model already has {self._num_queued} items waiting",
                retry_after_s=self._drain_s(),
            )
        displaced = lane.ring.push(entry)
        self._num_queued += displaced is None
        self._backlogged[entry.lane_id] = lane
        lane.last_offer_at = entry.offered_at
        self._recent[entry.lane_id] = lane
        self._recent.move_to_end(entry.lane_id)
        lane.share.join(lane, entry.offered_at)
        return displaced

    def cancel(self, entry: Entry) -> bool:
        """Take a queued entry out (withdrawn or expired); False when it is not queued."""
        lane = self._lanes.get(entry.lane_id)
        if lane is None or lane.ring.remove(entry.key) is None:
            return False
        self._num_queued -= 1
        self._note_taken(lane, entry.lane_id)
        return True

    def next_batch(self, now: float) -> list[Entry] | None:
        """Bind the next batch; None while none is due."""
        limit = self._batch_limit()
        closes_at = self._closes_at(now, limit)
        if closes_at is None or now < closes_at:
            return None
        # It is too late for some items if the prediction holds. They must not take a viable
        # one's place; but with nothing else to do they are tried, which also corrects a
        # prediction that was wrong.
        viable_after = now + self._cost.predict_answer(1)
        return self._fill(now, limit, viable_after) or self._fill(now, limit, None)

    def next_wakeup(self, now: float) -> float | None:
        """When the open batch closes if nothing else happens; None when nothing is queued."""
        return self._closes_at(now, self._batch_limit())

    def check_integrity(self) -> None:
        """Assert that the sums and indexes agree; for tests."""
        assert self._num_queued == sum(len(lane.ring) for lane in self._lanes.values())
        assert self._backlogged == {i: ln for i, ln in self._lanes.items() if len(ln.ring) > 0}
        assert self._recent.keys() <= self._lanes.keys()
        assert all(lane.is_scheduled for lane in self._backlogged.values())

    def _batch_limit(self) -> int:
        return min(self._max_batch_size, self._cost.best_batch_size(self._max_batch_size))

    def _drain_s(self) -> float:
        limit = self._batch_limit()
        return max(_MIN_RETRY_S, self._num_queued / limit * self._cost.predict(limit))

    def _closes_at(self, now: float, limit: int) -> float | None:
        """The window starts with the item that has waited longest, not with this question: a
        steady trickle cannot postpone the batch, and what waited for a worker goes at once.
        """
        if self._num_queued == 0:
            return None
        if self._num_queued >= limit or self._holds_every_live_lane(now):
            return now
        # Fewer lanes than one batch has items: this stays short.
        rings = [lane.ring for lane in self._backlogged.values()]
        opened_at = min(ring.waiting_since for ring in rings if ring.waiting_since is not None)
        deadlines = [
            deadline for ring in rings if (deadline := ring.nearest_deadline()) is not None
        ]
        closes_at = opened_at + self._window_s
        if deadlines:
            closes_at = min(closes_at, min(deadlines) - self._cost.predict_answer(self._num_queued))
        return closes_at

    def _holds_every_live_lane(self, now: float) -> bool:
        """Nobody else is about to offer: waiting would only cost time."""
        horizon = now - ACTIVITY_HORIZON_S
        while self._recent:
            lane_id, lane = next(iter(self._recent.items()))
            if lane.last_offer_at >= horizon:
                break
            del self._recent[lane_id]
        return len(self._recent) <= sum(lane_id in self._recent for lane_id in self._backlogged)

    def _fill(self, now: float, limit: int, viable_after: float | None) -> list[Entry]:
        batch: list[Entry] = []
        unfit: list[_LaneState] = []  # hold nothing viable
        while len(batch) < limit:
            share = self._most_urgent(now)
            if share is None:
                break
            lane = share.pop()
            entry = lane.ring.pop() if viable_after is None else lane.ring.pop_viable(viable_after)
            if entry is None:
                unfit.append(lane)
                continue
            share.charge(lane, now)
            batch.append(entry)
            self._num_queued -= 1
            self._note_taken(lane, entry.lane_id)
        for lane in unfit:
            lane.share.schedule(lane)
        return batch

    def _most_urgent(self, now: float) -> _ClassShare | None:
        waiting = [share for share in self._shares.values() if share.has_work()]
        return min(waiting, key=lambda share: share.urgency(now), default=None)

    def _note_taken(self, lane: _LaneState, lane_id: int) -> None:
        if len(lane.ring) == 0:
            self._backlogged.pop(lane_id, None)


class _ClassShare:
    """Fair share between the lanes of one priority class."""

    def __init__(self, rank: int) -> None:
        self._rank = rank
        self._virtual_time = 0.0
        self._latest_finish = 0.0  # of any item served so far
        self._heap: list[tuple[float, int, _LaneState]] = []  # (start, order of joining, lane)
        self._order = itertools.count()
        self._waiting_since: float | None = None  # last served, or first offered since

    def has_work(self) -> bool:
        """Drops lanes that were emptied otherwise (cancelled, expired) off the top.

        Such an entry stays until it reaches the top. The virtual time has not passed its start
        until then, so a lane that fills up again in between keeps its rightful place.
        """
        while self._heap and len(self._heap[0][2].ring) == 0:
            heapq.heappop(self._heap)[2].is_scheduled = False
        if not self._heap:
            # An idle class forgives: whoever comes next starts level with everybody else.
            self._virtual_time = self._latest_finish
        return bool(self._heap)

    def urgency(self, now: float) -> float:
        """Smaller is more urgent. A class that is not served rises by one rank per ageing step.

        It is the wait of the class and not of its oldest item: replacing frames would reset the
        latter for ever, and a long backlog that has aged would shut out the urgent class.
        """
        waiting_since = now if self._waiting_since is None else self._waiting_since
        return self._rank - (now - waiting_since) / AGEING_STEP_S

    def join(self, lane: _LaneState, now: float) -> None:
        """The lane holds something."""
        if self._waiting_since is None:
            self._waiting_since = now
        if not lane.is_scheduled:
            self.schedule(lane)

    def schedule(self, lane: _LaneState) -> None:
        lane.start = max(lane.start, self._virtual_time)
        lane.is_scheduled = True
        heapq.heappush(self._heap, (lane.start, next(self._order), lane))

    def pop(self) -> _LaneState:
        lane = heapq.heappop(self._heap)[2]
        lane.is_scheduled = False
        return lane

    def charge(self, lane: _LaneState, now: float) -> None:
        """The lane, just popped, was served one item."""
        self._virtual_time = lane.start
        lane.start += 1.0 / lane.ring.spec.weight
        self._latest_finish = max(self._latest_finish, lane.start)
        if len(lane.ring) > 0:
            self.schedule(lane)
        # Only a service ends the wait: expiring and offering again must not.
        self._waiting_since = now if self.has_work() else None

    def forget(self, lane: _LaneState) -> None:
        """The lane is closed. O(lanes), so that the heap never holds more than live lanes."""
        self._heap = [scheduled for scheduled in self._heap if scheduled[2] is not lane]
        heapq.heapify(self._heap)
