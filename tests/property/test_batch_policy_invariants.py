"""Whatever happens to the policy: nothing lost, nothing twice, bounds kept, shares fair."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from engine.batching.cost import CostModel
from engine.batching.policy import BatchPolicy
from engine.errors import Overloaded
from engine.lane import Entry
from engine.types import Item, LaneSpec, Policy, Priority

pytestmark = pytest.mark.property

WINDOW_S = 0.02
MAX_QUEUED = 12
DELAYS = st.sampled_from([0.0, 0.001, 0.01, 0.02, 0.5, 3.0])


class PolicyMachine(RuleBasedStateMachine):
    """``queued`` is the model: what the policy must still hold."""

    def __init__(self) -> None:
        super().__init__()
        self.now = 0.0
        self.next_id = 0
        self.lanes: list[int] = []
        self.queued: dict[int, Entry] = {}

    @initialize(max_batch_size=st.integers(1, 6), run_s=st.sampled_from([0.0, 0.01]))
    def build(self, max_batch_size: int, run_s: float) -> None:
        cost = CostModel()
        if run_s:
            cost.seed({1: run_s, 8: 2 * run_s})
        self.max_batch_size = max_batch_size
        self.policy = BatchPolicy(
            max_batch_size=max_batch_size, window_s=WINDOW_S, max_queued=MAX_QUEUED, cost=cost
        )

    @rule(
        policy=st.sampled_from(Policy),
        capacity=st.integers(1, 5),
        weight=st.sampled_from([0.1, 1.0, 7.0]),
        priority=st.sampled_from(Priority),
    )
    def open_lane(self, policy: Policy, capacity: int, weight: float, priority: Priority) -> None:
        spec = LaneSpec(
            model="m", policy=policy, capacity=capacity, weight=weight, priority=priority
        )
        self.next_id += 1
        self.policy.add_lane(self.next_id, spec)
        self.lanes.append(self.next_id)

    @rule(data=st.data())
    def close_lane(self, data: st.DataObject) -> None:
        if self.lanes:
            lane_id = data.draw(st.sampled_from(self.lanes))
            self.lanes.remove(lane_id)
            self.policy.remove_lane(lane_id)
            self.queued = {k: e for k, e in self.queued.items() if e.lane_id != lane_id}

    @rule(
        data=st.data(),
        budget_s=st.one_of(st.none(), st.sampled_from([0.001, 0.05, 10.0])),
        bucket=st.integers(0, 2),
        demand=st.integers(1, 20),
    )
    def offer(self, data: st.DataObject, budget_s: float | None, bucket: int, demand: int) -> None:
        if not self.lanes:
            return
        self.next_id += 1
        deadline = None if budget_s is None else self.now + budget_s
        entry = Entry(
            key=self.next_id,
            lane_id=data.draw(st.sampled_from(self.lanes)),
            item=Item(id=self.next_id, payload=b"", deadline=deadline),
            offered_at=self.now,
            bucket=bucket,
        )
        self.policy.note_demand(demand, self.now)
        try:
            displaced = self.policy.offer(entry)
        except Overloaded:
            return
        self.queued[entry.key] = entry
        if displaced is not None:
            assert displaced.lane_id == entry.lane_id
            assert self.queued.pop(displaced.key) is displaced

    @rule(data=st.data())
    def cancel(self, data: st.DataObject) -> None:
        if self.queued:
            entry = self.queued.pop(data.draw(st.sampled_from(sorted(self.queued))))
            assert self.policy.cancel(entry)

    @rule(delay_s=DELAYS)
    def wait(self, delay_s: float) -> None:
        self.now += delay_s
        for entry in list(self.queued.values()):
            if entry.item.deadline is not None and entry.item.deadline <= self.now:
                assert self.policy.cancel(self.queued.pop(entry.key))

    @rule()
    def ask(self) -> None:
        before = len(self.queued)
        oldest = min((entry.offered_at for entry in self.queued.values()), default=self.now)
        batch = self.policy.next_batch(self.now)
        if batch is None:
            assert before < 3 * self.max_batch_size
            assert self.now < oldest + WINDOW_S
            return
        assert 1 <= len(batch) <= self.max_batch_size
        assert len({entry.bucket for entry in batch}) == 1
        for entry in batch:
            assert self.queued.pop(entry.key) is entry

    @rule()
    def empty_it(self) -> None:
        """Everything queued comes out if one keeps asking when told to."""
        while self.queued:
            wakeup = self.policy.next_wakeup(self.now)
            assert wakeup is not None
            self.now = max(self.now, wakeup)
            batch = self.policy.next_batch(self.now)
            assert batch
            for entry in batch:
                assert self.queued.pop(entry.key) is entry

    @invariant()
    def books_agree(self) -> None:
        if hasattr(self, "policy"):
            self.policy.check_integrity()
            assert self.policy.num_queued == len(self.queued) <= MAX_QUEUED
            wakeup = self.policy.next_wakeup(self.now)
            assert (wakeup is None) == (not self.queued)


TestPolicy = PolicyMachine.TestCase
TestPolicy.settings = settings(max_examples=60, stateful_step_count=40, deadline=None)


@given(
    weights=st.lists(st.sampled_from([0.5, 1.0, 2.0, 5.0]), min_size=2, max_size=5),
    max_batch_size=st.integers(1, 6),
    num_batches=st.integers(1, 40),
)
def test_backlogged_lanes_are_served_in_proportion_to_their_weights(
    weights: list[float], max_batch_size: int, num_batches: int
) -> None:
    """Start-time fair queueing's bound: normalised service differs by at most one item each."""
    policy = BatchPolicy(
        max_batch_size=max_batch_size, window_s=0.0, max_queued=10_000, cost=CostModel()
    )
    for lane_id, weight in enumerate(weights):
        spec = LaneSpec(model="m", policy=Policy.FIFO, capacity=300, weight=weight)
        policy.add_lane(lane_id, spec)
        for number in range(300):
            key = lane_id * 300 + number
            item = Item(id=key, payload=b"")
            policy.offer(Entry(key=key, lane_id=lane_id, item=item, offered_at=0.0))
    served = [0.0] * len(weights)
    for _ in range(num_batches):
        for entry in policy.next_batch(0.0) or ():
            served[entry.lane_id] += 1.0 / weights[entry.lane_id]
    for one, weight in zip(served, weights, strict=True):
        for other, other_weight in zip(served, weights, strict=True):
            assert abs(one - other) <= 1.0 / weight + 1.0 / other_weight + 1e-9
