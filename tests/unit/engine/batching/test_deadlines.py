from __future__ import annotations

import pytest

from engine.batching.deadlines import DeadlineHeap
from engine.lane import Entry
from engine.types import Item

pytestmark = pytest.mark.unit


def entry(key: int, deadline: float | None) -> Entry:
    item = Item(id=key, payload=b"", deadline=deadline)
    return Entry(key=key, lane_id=0, item=item, offered_at=0.0)


def test_items_come_up_at_their_deadline_nearest_first() -> None:
    heap = DeadlineHeap(live={1, 2, 3})
    for key, deadline in ((1, 3.0), (2, 1.0), (3, 2.0)):
        heap.add(entry(key, deadline))
    assert heap.nearest() == 1.0
    assert heap.pop_due(0.9) is None
    assert [heap.pop_due(2.0), heap.pop_due(2.0), heap.pop_due(2.0)] == [2, 3, None]


def test_an_item_without_a_deadline_never_comes_up() -> None:
    heap = DeadlineHeap(live={1})
    heap.add(entry(1, None))
    assert heap.nearest() is None
    assert heap.pop_due(1e9) is None


def test_answered_items_are_skipped() -> None:
    live = {1, 2}
    heap = DeadlineHeap(live)
    heap.add(entry(1, 1.0))
    heap.add(entry(2, 2.0))
    live.remove(1)
    assert heap.nearest() == 2.0
    assert heap.pop_due(5.0) == 2


def test_answered_items_do_not_pile_up() -> None:
    live: set[int] = {0}
    heap = DeadlineHeap(live)
    heap.add(entry(0, 1.0))  # nearest, so nothing behind it ever comes to the top
    for key in range(1, 10_000):
        heap.add(entry(key, 2.0))
    assert len(heap) <= 130
    assert heap.nearest() == 1.0
