from __future__ import annotations

import itertools

import pytest

from engine.errors import Overloaded
from engine.lane import Entry, RingLane
from engine.types import Item, LaneSpec, Policy

pytestmark = pytest.mark.unit

keys = itertools.count()


def entry(offered_at: float = 0.0, deadline: float | None = None, bucket: int = 0) -> Entry:
    key = next(keys)
    item = Item(id=key, payload=b"", deadline=deadline)
    return Entry(key=key, lane_id=0, item=item, offered_at=offered_at, bucket=bucket)


def lane(policy: Policy = Policy.LATEST, capacity: int = 2) -> RingLane:
    return RingLane(LaneSpec(model="m", policy=policy, capacity=capacity))


def test_entries_leave_oldest_first() -> None:
    ring, first, second = lane(), entry(), entry()
    ring.push(first)
    ring.push(second)
    assert [ring.pop(), ring.pop(), ring.pop()] == [first, second, None]


def test_latest_displaces_the_oldest() -> None:
    ring, entries = lane(), [entry() for _ in range(3)]
    assert [ring.push(new) for new in entries] == [None, None, entries[0]]
    assert [ring.pop(), ring.pop()] == entries[1:]


@pytest.mark.parametrize("policy", [Policy.FIFO, Policy.LOSSLESS])
def test_a_full_lane_that_keeps_what_it_has_refuses(policy: Policy) -> None:
    ring, first = lane(policy, capacity=1), entry()
    ring.push(first)
    with pytest.raises(Overloaded):
        ring.push(entry())
    assert [ring.pop(), ring.pop()] == [first, None]


def test_remove_takes_out_one_entry() -> None:
    ring, first, second = lane(), entry(), entry()
    ring.push(first)
    ring.push(second)
    assert ring.remove(first)
    assert not ring.remove(first)
    assert len(ring) == 1


def test_an_item_for_which_it_is_too_late_is_passed_over_and_kept() -> None:
    ring, late, viable = lane(), entry(deadline=1.0), entry(deadline=2.0)
    ring.push(late)
    ring.push(viable)
    assert ring.pop_viable(after=1.0) is viable
    assert ring.pop_viable(after=1.0) is None
    assert len(ring) == 1
    assert ring.pop() is late


def test_an_item_without_a_deadline_is_always_viable() -> None:
    ring, timeless = lane(), entry()
    ring.push(timeless)
    assert ring.pop_viable(after=1e9) is timeless


def test_an_item_set_aside_counts_is_found_and_is_displaced_first() -> None:
    ring, late, viable = lane(), entry(deadline=1.0), entry(deadline=9.0)
    ring.push(late)
    assert ring.pop_viable(after=5.0) is None
    ring.push(viable)
    assert ring.push(entry(deadline=9.0)) is late

    ring.push(other := entry(deadline=1.0))
    assert ring.remove(other)


def test_the_wait_begins_with_the_first_offer_and_survives_displacement() -> None:
    ring = lane(capacity=1)
    assert ring.waiting_since is None
    ring.push(entry(offered_at=1.0))
    ring.push(entry(offered_at=2.0))
    assert ring.waiting_since == 1.0
    ring.pop()
    assert ring.waiting_since is None


def test_after_a_service_the_lane_waits_since_its_new_head_was_offered() -> None:
    ring = lane()
    ring.push(entry(offered_at=1.0))
    ring.push(entry(offered_at=2.0))
    ring.pop()
    assert ring.waiting_since == 2.0


def test_removal_of_the_last_entry_ends_the_wait() -> None:
    ring, only = lane(), entry(offered_at=1.0)
    ring.push(only)
    ring.remove(only)
    assert ring.waiting_since is None


def test_the_nearest_deadline_may_be_anywhere() -> None:
    ring = lane(Policy.FIFO, capacity=4)
    assert ring.nearest_deadline() is None
    ring.push(entry())
    ring.push(entry(deadline=3.0))
    ring.push(entry(deadline=2.0))
    assert ring.nearest_deadline() == 2.0


def test_each_bucket_leaves_oldest_first_and_the_oldest_of_all_is_displaced() -> None:
    ring = lane(capacity=3)
    entries = [entry(bucket=number) for number in (1, 2, 1, 2)]
    for new in entries[:3]:
        ring.push(new)
    assert ring.push(entries[3]) is entries[0]
    assert ring.head() is entries[1]
    assert [ring.has(1), ring.has(2), ring.has(3)] == [True, True, False]
    assert list(ring.entries(2)) == [entries[1], entries[3]]
    assert [ring.pop_viable(0.0, 1), ring.pop_viable(0.0, 1)] == [entries[2], None]
    assert [ring.pop(2), ring.pop(), ring.pop(2)] == [entries[1], entries[3], None]
