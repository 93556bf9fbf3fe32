"""Which items make the next batch, and when it closes. Pure: ``now`` is an argument.

A batch has items of one shape bucket. It closes when it is full, when nobody else is about to
come, or when its window is over; it takes as many items as can be in time together, up to the
size beyond which the measured curve says that company does not pay.
"""

from __future__ import annotations

import heapq
import math
from collections import Counter, OrderedDict

from engine.batching.arrivals import ArrivalRate, RecentPeak
from engine.batching.cost import CostModel
from engine.batching.fair_share import ClassShare, LaneState
from engine.errors import Overloaded
from engine.lane import Entry, RingLane
from engine.types import LaneSpec, Priority

ACTIVITY_HORIZON_S = 2.0  # a lane is live while its last offer is no older than this
# So often a batch is as small as the lane whose turn it is needs, whatever that costs the others:
# a stream of short deadlines among long batches is not starved.
TURN_PERIOD_S = 0.1
PATIENT_BATCHES = 8  # who waits behind so many loses little if one of them is larger
PATIENT_TOLERANCE = 0.01  # of throughput, for a smaller batch where latency is no matter
TRIAL_PERIOD, TRIAL_LOSS = 16, 0.02  # batches between two; more if one costs more than that share
_MIN_RETRY_S = 0.05


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
        self._shares = {priority: ClassShare(priority.rank) for priority in Priority}
        self._lanes: dict[int, LaneState] = {}
        self._backlogged: dict[int, LaneState] = {}  # lanes that hold something
        self._recent: OrderedDict[int, LaneState] = OrderedDict()  # by last offer, oldest first
        self._queued: Counter[int] = Counter()  # by bucket; only what is there
        self._num_queued = 0
        self._num_timed = 0  # of them, those with a deadline
        self._rate = ArrivalRate()
        self._demand: RecentPeak | None = None
        self._turn_kept_at = -math.inf
        self._num_untried = 0  # batches, since a larger size was tried

    @property
    def num_queued(self) -> int:
        return self._num_queued

    @property
    def num_lanes(self) -> int:
        return len(self._lanes)

    def add_lane(self, lane_id: int, spec: LaneSpec) -> None:
        self._lanes[lane_id] = LaneState(RingLane(spec), self._shares[spec.priority])

    def remove_lane(self, lane_id: int) -> None:
        """Forget the lane and what it still holds."""
        lane = self._lanes.pop(lane_id)
        self._recent.pop(lane_id, None)
        self._backlogged.pop(lane_id, None)
        lane.share.forget(lane)
        while (entry := lane.ring.pop()) is not None:
            self._count_out(entry)

    def note_demand(self, num_unanswered: int, now: float) -> None:
        """How many items callers wait for, the one that is about to be offered included.

        Callers who wait for their answers before they ask again never have more than that: once
        all of it is queued, nobody else will come.
        """
        if self._demand is None:
            self._demand = RecentPeak()
        self._demand.note(num_unanswered, now)

    def offer(self, entry: Entry) -> Entry | None:
        """Queue ``entry`` in its lane; returns the one it displaced, if any.

        Raises:
            Overloaded: the lane keeps what it has, or the model's total is reached; nothing was
                queued.
        """
        lane = self._lanes[entry.lane_id]
        # A lane that is not empty may replace what it holds even when the model is full.
        if not lane.ring.is_full and self._num_queued >= self._max_queued:
            raise Overloaded(
                f"the model already has {self._num_queued} items waiting",
                retry_after_s=self._drain_s(),
            )
        displaced = lane.ring.push(entry)
        if displaced is not None:
            self._count_out(displaced)
        self._queued[entry.bucket] += 1
        self._num_queued += 1
        self._num_timed += entry.item.deadline is not None
        self._backlogged[entry.lane_id] = lane
        self._rate.note(entry.offered_at)
        lane.last_offer_at = entry.offered_at
        self._recent[entry.lane_id] = lane
        self._recent.move_to_end(entry.lane_id)
        lane.share.join(lane, entry.offered_at)
        return displaced

    def cancel(self, entry: Entry) -> bool:
        """Take a queued entry out (withdrawn or expired); False when it is not queued."""
        lane = self._lanes.get(entry.lane_id)
        if lane is None or not lane.ring.remove(entry):
            return False
        self._note_taken(lane, entry)
        return True

    def next_batch(self, now: float, wait_s: float = 0.0) -> list[Entry] | None:
        """Bind the next batch; None while none is due.

        ``wait_s`` is how long the worker that gets it will still be busy with others.
        """
        buckets = self._due_buckets(now, wait_s)
        for bucket in buckets:
            size = self._size_in_time(now, wait_s, bucket)
            if size > 0:
                in_time = now + wait_s + self._cost.predict_answer(size, bucket)
                batch = self._fill(now, bucket, size, in_time)
                if batch:
                    return batch
        # It is too late for everything, if the predictions hold. With nothing else to do they are
        # tried all the same, which also corrects a prediction that was wrong.
        return self._fill(now, buckets[0], self._limit(buckets[0]), None) if buckets else None

    def next_wakeup(self, now: float, wait_s: float = 0.0) -> float | None:
        """When the open batch closes if nothing else happens; None when nothing is queued."""
        return self._closes_at(now, wait_s)

    def hold_s(self, now: float, wait_s: float) -> float:
        """How long to leave the room behind a running batch empty; ``wait_s``: see ``next_batch``.

        Not at all as long as what is queued is well in time: early binding hides the preparation,
        and giving it up costs 15 % where a model shares its core with its worker's other threads
        (``loadtest.bench_path``). But when deadlines are near, items that are bound early only
        grow old behind the running batch, and fresher ones miss it: then the next is bound just
        before the worker is free.
        """
        leads, answers = [], []
        for bucket, count in self._queued.items():
            size = min(count, self._limit(bucket))
            leads.append(self._cost.lead_s(size, bucket))
            answers.append(self._cost.predict_answer(size, bucket))
        hold_s = wait_s - max(leads, default=wait_s)
        if hold_s <= 0:
            return 0.0
        # One answer more, because the batch after this one will be bound as this one runs.
        in_time = now + wait_s + 2 * max(answers)
        heads = (lane.ring.head() for lane in self._backlogged.values())
        is_pressed = any(head is not None and head.is_late(in_time) for head in heads)
        return hold_s if is_pressed else 0.0

    def queue_age_s(self, now: float) -> float:
        """How long the lane that waits longest has waited; 0 when nothing is queued."""
        return max(0.0, now - self._waiting_since()) if self._num_queued else 0.0

    def check_integrity(self) -> None:
        """Assert that the sums and indexes agree; for tests."""
        assert self._num_queued == sum(len(lane.ring) for lane in self._lanes.values())
        assert self._num_queued == self._queued.total()
        assert 0 <= self._num_timed <= self._num_queued
        assert all(count > 0 for count in self._queued.values())
        assert self._backlogged == {i: ln for i, ln in self._lanes.items() if len(ln.ring) > 0}
        assert self._recent.keys() <= self._lanes.keys()
        assert all(lane.is_scheduled for lane in self._backlogged.values())

    # --- when

    def _due_buckets(self, now: float, wait_s: float) -> list[int]:
        """Buckets to make a batch of now, best first; empty while none is due."""
        if self._num_queued == 0:
            return []
        full = [b for b, count in self._queued.items() if count >= self._limit(b)]
        if not full and now < (self._closes_at(now, wait_s) or now):
            return []
        buckets = full or list(self._queued)
        buckets.sort(key=self._queued.__getitem__, reverse=True)
        head = self._next_lane(now).head()
        assert head is not None
        is_due = not full or now >= self._window_end()
        if is_due or head.bucket in full:
            buckets = [head.bucket, *(bucket for bucket in buckets if bucket != head.bucket)]
        return buckets

    def _closes_at(self, now: float, wait_s: float) -> float | None:
        if self._num_queued == 0:
            return None
        is_full = any(count >= self._limit(bucket) for bucket, count in self._queued.items())
        if is_full or self._is_everybody_in(now):
            return now
        closes_at = self._window_end()
        if self._num_timed == 0:
            return closes_at
        # Fewer lanes than one batch has items: this stays short.
        for lane in self._backlogged.values():
            deadline = lane.ring.nearest_deadline()
            if deadline is not None:
                head = lane.ring.head()
                assert head is not None
                size = self._queued[head.bucket]
                answer_s = self._cost.predict_answer(size, head.bucket)
                # The worker begins no earlier than it is free, however early it gets the batch.
                last_start = deadline - answer_s
                closes_at = min(closes_at, last_start if last_start >= now + wait_s else now)
        return closes_at

    def _window_end(self) -> float:
        """The window starts with the item that has waited longest, not with this question: a
        steady trickle cannot postpone the batch, and what waited for a worker goes at once.
        """
        opened_at = self._waiting_since()
        rate = self._rate.per_second
        if rate is None:
            return opened_at + self._window_s
        if rate * self._window_s < 1.0:
            return opened_at  # no company is to be expected
        bucket, count = self._queued.most_common(1)[0]
        return opened_at + min(self._window_s, (self._limit(bucket) - count) / rate)

    def _waiting_since(self) -> float:
        waits = (lane.ring.waiting_since for lane in self._backlogged.values())
        return min(wait for wait in waits if wait is not None)

    def _is_everybody_in(self, now: float) -> bool:
        """Nobody else is about to offer: waiting would only cost time."""
        if self._demand is not None and self._num_queued >= self._demand.value(now):
            return True
        horizon = now - ACTIVITY_HORIZON_S
        while self._recent:
            lane_id, lane = next(iter(self._recent.items()))
            if lane.last_offer_at >= horizon:
                break
            del self._recent[lane_id]
        full = sum(
            lane_id in self._recent and lane.ring.is_full
            for lane_id, lane in self._backlogged.items()
        )
        return len(self._recent) <= full

    # --- how many

    def _limit(self, bucket: int) -> int:
        return self._cost.best_batch_size(self._max_batch_size, bucket)

    def _patient_size(self, bucket: int) -> int:
        """The limit; where so much waits that nobody loses by a larger batch, the size with the
        best throughput, and now and then the next larger one. What a batch costs beside its run, on
        a core that it shares with the gateway, shows only while the gateway works: no warm-up can
        measure it.
        """
        limit, backlog = self._limit(bucket), self._queued[bucket] // PATIENT_BATCHES
        if backlog < limit:
            return limit
        size = self._cost.best_batch_size(self._max_batch_size, bucket, tolerance=PATIENT_TOLERANCE)
        trial = self._cost.trial_of(size, min(backlog, self._max_batch_size), bucket)
        if trial is not None:
            self._num_untried += 1
            # What trials cost stays the same however little they promise.
            if self._num_untried >= TRIAL_PERIOD * max(1.0, trial.loss / TRIAL_LOSS):
                self._num_untried = 0
                return trial.size
        return size if size <= backlog else limit

    def _drain_s(self) -> float:
        """How long the workers take for what is queued."""
        drain_s = _MIN_RETRY_S
        for bucket, count in self._queued.items():
            limit = self._limit(bucket)
            drain_s += count / limit * self._cost.predict(limit, bucket)
        return drain_s

    def _size_in_time(self, now: float, wait_s: float, bucket: int) -> int:
        """The largest batch whose items can all be answered in time together; 0 if not even one.

        Up to the limit a larger batch has the better throughput, so this gives up the few whose
        deadline is so near that they would make it small.
        """
        if self._num_timed == 0:
            return min(self._patient_size(bucket), self._queued[bucket])
        deadlines = heapq.nlargest(
            self._limit(bucket),
            (
                _deadline(entry)
                for lane in self._backlogged.values()
                for entry in lane.ring.entries(bucket)
            ),
        )
        begins_at = now + wait_s
        size = self._num_in_time(deadlines, begins_at, bucket)
        if size > 1 and now - self._turn_kept_at >= TURN_PERIOD_S:
            self._turn_kept_at = now
            lane = self._next_lane(now)
            latest = max(map(_deadline, lane.entries(bucket)), default=math.inf)
            size = self._num_in_time([latest] * size, begins_at, bucket) or size
        return size

    def _num_in_time(self, deadlines: list[float], begins_at: float, bucket: int) -> int:
        """How many of these, the latest first, can be in time as one batch."""
        for size, deadline in enumerate(deadlines, start=1):
            if deadline <= begins_at + self._cost.predict_answer(size, bucket):
                return size - 1
        return len(deadlines)

    # --- which

    def _fill(self, now: float, bucket: int, size: int, viable_after: float | None) -> list[Entry]:
        batch: list[Entry] = []
        unfit: list[LaneState] = []  # hold nothing viable of this bucket
        while len(batch) < size and (share := self._most_urgent(now)) is not None:
            lane = share.pop()
            if viable_after is None:
                entry = lane.ring.pop(bucket)
            else:
                entry = lane.ring.pop_viable(viable_after, bucket)
            if entry is None:
                unfit.append(lane)
                continue
            share.charge(lane, now)
            batch.append(entry)
            self._note_taken(lane, entry)
        for lane in unfit:
            lane.share.restore(lane)
        return batch

    def _most_urgent(self, now: float) -> ClassShare | None:
        """The class whose turn it is; None when nothing is queued."""
        waiting = [share for share in self._shares.values() if share.has_work()]
        if len(waiting) < 2:
            return waiting[0] if waiting else None
        return min(waiting, key=lambda share: share.urgency(now))

    def _next_lane(self, now: float) -> RingLane:
        """The lane whose turn it is; something must be queued."""
        share = self._most_urgent(now)
        assert share is not None
        return share.head().ring

    def _note_taken(self, lane: LaneState, entry: Entry) -> None:
        self._count_out(entry)
        if len(lane.ring) == 0:
            self._backlogged.pop(entry.lane_id, None)

    def _count_out(self, entry: Entry) -> None:
        self._num_queued -= 1
        self._num_timed -= entry.item.deadline is not None
        self._queued[entry.bucket] -= 1
        if self._queued[entry.bucket] == 0:
            del self._queued[entry.bucket]


def _deadline(entry: Entry) -> float:
    return math.inf if entry.item.deadline is None else entry.item.deadline
