"""When the next item expires. Pure: ``now`` is an argument."""

from __future__ import annotations

import heapq
from collections.abc import Container

from engine.lane import Entry

_SLACK = 64


class DeadlineHeap:
    """Every unanswered item with a deadline, nearest first.

    Answered items are not searched for but skipped when they come up (``live`` holds the keys of
    the unanswered ones); the heap is rebuilt when they outnumber the rest, which bounds it.
    """

    def __init__(self, live: Container[int]) -> None:
        self._live = live
        self._heap: list[tuple[float, int]] = []
        self._rebuild_at = _SLACK

    def __len__(self) -> int:
        return len(self._heap)

    def add(self, entry: Entry) -> None:
        """Watch ``entry``; without a deadline it never expires."""
        if entry.item.deadline is not None:
            self.watch(entry.key, entry.item.deadline)

    def watch(self, key: int, due_at: float) -> None:
        """Let ``key`` come up at ``due_at``."""
        heapq.heappush(self._heap, (due_at, key))
        if len(self._heap) > self._rebuild_at:
            self._heap = [watched for watched in self._heap if watched[1] in self._live]
            heapq.heapify(self._heap)
            self._rebuild_at = 2 * len(self._heap) + _SLACK

    def nearest(self) -> float | None:
        """The nearest deadline of an unanswered item."""
        while self._heap and self._heap[0][1] not in self._live:
            heapq.heappop(self._heap)
        return self._heap[0][0] if self._heap else None

    def pop_due(self, now: float) -> int | None:
        """Key of one item whose deadline is reached; None when there is none."""
        nearest = self.nearest()
        if nearest is None or nearest > now:
            return None
        return heapq.heappop(self._heap)[1]
