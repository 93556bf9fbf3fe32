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

DEADLINES = st.one_of(st.none(), st.integers(0, 20).map(float))
PUSH = st.tuples(st.just("push"), DEADLINES)
POP_VIABLE = st.tuples(st.just("pop_viable"), st.integers(0, 20).map(float))
REMOVE = st.tuples(st.just("remove"), st.integers(0, 30))
OPERATIONS = st.lists(st.one_of(PUSH, st.just(("pop", None)), POP_VIABLE, REMOVE), max_size=60)


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

    def remove(self, key: int) -> Entry | None:
        entry = next((entry for entry in self.entries if entry.key == key), None)
        if entry is not None:
            self.entries.remove(entry)
        return entry


@given(st.sampled_from(Policy), st.integers(1, 4), OPERATIONS)
def test_the_lane_does_what_a_list_would(
    policy: Policy, capacity: int, operations: list[tuple[str, float | None]]
) -> None:
    spec = LaneSpec(model="m", policy=policy, capacity=capacity)
    ring, model = RingLane(spec), ListLane(spec)
    for step, (name, argument) in enumerate(operations):
        if name == "push":
            item = Item(id=step, payload=b"", deadline=argument)
            entry = Entry(key=step, lane_id=0, item=item, offered_at=float(step))
            assert outcome(ring.push, entry) == outcome(model.push, entry)
        elif name == "pop":
            assert ring.pop() is model.pop()
        elif name == "pop_viable":
            assert ring.pop_viable(argument) is model.pop_viable(argument)
        else:
            assert ring.remove(argument) is model.remove(argument)
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
