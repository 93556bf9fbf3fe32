"""The lane against a plain list."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from engine.errors import Overloaded
from engine.lane import Entry, RingLane
from engine.types import Item, LaneSpec, Policy

pytestmark = pytest.mark.property

NAMES = st.sampled_from(["push", "push", "push timeless", "pop", "pop_viable", "remove"])
OPERATIONS = st.lists(st.tuples(NAMES, st.integers(0, 30)), max_size=60)


class ListLane:
    """The same contract, written to be obvious: ``aside`` marks what was passed over."""

    def __init__(self, spec: LaneSpec) -> None:
        self.spec = spec
        self.entries: list[Entry] = []
        self.aside: set[int] = set()

    def oldest(self) -> Entry | None:
        passed_over = [entry for entry in self.entries if entry.key in self.aside]
        return next(iter(passed_over or self.entries), None)

    def push(self, entry: Entry) -> Entry | None:
        displaced = None
        if len(self.entries) == self.spec.capacity:
            if self.spec.policy is not Policy.LATEST:
                raise Overloaded("full")
            displaced = self.oldest()
            assert displaced is not None
            self.entries.remove(displaced)
        self.entries.append(entry)
        return displaced

    def pop(self) -> Entry | None:
        entry = self.oldest()
        if entry is not None:
            self.entries.remove(entry)
        return entry

    def pop_viable(self, after: float) -> Entry | None:
        for entry in [e for e in self.entries if e.key not in self.aside]:
            if entry.item.deadline is None or entry.item.deadline > after:
                self.entries.remove(entry)
                return entry
            self.aside.add(entry.key)
        return None

    def remove(self, entry: Entry) -> bool:
        is_here = entry in self.entries
        if is_here:
            self.entries.remove(entry)
        return is_here


@given(st.sampled_from(Policy), st.integers(1, 4), OPERATIONS)
def test_the_lane_does_what_a_list_would(
    policy: Policy, capacity: int, operations: list[tuple[str, int]]
) -> None:
    spec = LaneSpec(model="m", policy=policy, capacity=capacity)
    ring, model = RingLane(spec), ListLane(spec)
    offered: list[Entry] = []
    for step, (name, number) in enumerate(operations):
        if name.startswith("push"):
            item = Item(id=step, payload=b"", deadline=number if name == "push" else None)
            entry = Entry(key=step, lane_id=0, item=item, offered_at=float(step))
            offered.append(entry)
            assert outcome(ring.push, entry) == outcome(model.push, entry)
        elif name == "pop":
            assert ring.pop() is model.pop()
        elif name == "pop_viable":
            assert ring.pop_viable(number) is model.pop_viable(number)
        else:
            entry = offered[number % len(offered)] if offered else None
            assert entry is None or ring.remove(entry) == model.remove(entry)
        assert len(ring) == len(model.entries) <= capacity
        assert (ring.waiting_since is None) == (len(ring) == 0)
        deadlines = [e.item.deadline for e in model.entries if e.item.deadline is not None]
        assert ring.nearest_deadline() == min(deadlines, default=None)
    while model.entries:
        assert ring.pop() is model.pop()
    assert ring.pop() is None


def outcome(push: Callable[[Entry], Entry | None], entry: Entry) -> object:
    try:
        return push(entry)
    except Overloaded:
        return Overloaded
