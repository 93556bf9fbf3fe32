"""A batch policy with short calls for tests."""

from __future__ import annotations

import itertools
from collections import Counter

from engine.batching.cost import CostModel
from engine.batching.policy import BatchPolicy
from engine.lane import Entry
from engine.types import Item, LaneSpec, Policy, Priority
from tests.fakes.executor import FLAT_RUN_S

WINDOW_S = 0.005


class PolicyBench:
    """Every offer and every batch is followed by an integrity check. What ``batch_lanes`` takes
    counts as answered at once."""

    def __init__(self, max_batch_size: int = 4, run_s: float = 0.0, max_queued: int = 100) -> None:
        self.cost = CostModel()
        curve = {size: run_s * size**0.5 for size in (1, 2, 4, 8)} if run_s else FLAT_RUN_S
        self.cost.seed(curve)
        self.policy = BatchPolicy(
            max_batch_size=max_batch_size,
            window_s=WINDOW_S,
            max_queued=max_queued,
            cost=self.cost,
        )
        self.num_unanswered = 0
        self._keys = itertools.count()
        self._lane_ids = itertools.count()

    def learn(self, *buckets: int) -> None:
        """As if live batches had shown that company pays for these shapes too."""
        for bucket in buckets:
            for size in (1, 2, 4, 8) * 3:
                self.cost.observe_run(size, 1e-6, bucket)

    def lane(
        self,
        policy: Policy = Policy.FIFO,
        capacity: int = 100,
        weight: float = 1.0,
        priority: Priority = Priority.STANDARD,
    ) -> int:
        lane_id = next(self._lane_ids)
        spec = LaneSpec(
            model="m", policy=policy, capacity=capacity, weight=weight, priority=priority
        )
        self.policy.add_lane(lane_id, spec)
        return lane_id

    def entry(
        self, lane_id: int, now: float = 0.0, deadline: float | None = None, bucket: int = 0
    ) -> Entry:
        key = next(self._keys)
        item = Item(id=key, payload=b"", deadline=deadline)
        return Entry(key=key, lane_id=lane_id, item=item, offered_at=now, bucket=bucket)

    def offer(
        self, lane_id: int, now: float = 0.0, deadline: float | None = None, bucket: int = 0
    ) -> Entry:
        entry = self.entry(lane_id, now, deadline, bucket)
        self.policy.note_demand(self.num_unanswered + 1, now)
        self.num_unanswered += self.policy.offer(entry) is None
        self.policy.check_integrity()
        return entry

    def batch_lanes(self, now: float = 0.0) -> list[int] | None:
        batch = self.policy.next_batch(now)
        self.num_unanswered -= len(batch or ())
        self.policy.check_integrity()
        return None if batch is None else [entry.lane_id for entry in batch]

    def served(self, num_batches: int, now: float = 0.0) -> Counter[int]:
        """How often each lane was served in so many batches."""
        return Counter(lane for _ in range(num_batches) for lane in self.batch_lanes(now) or ())
