"""A stream's bounded queue: accepted items that are not bound to a batch yet."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterator
from dataclasses import dataclass

from engine.errors import Overloaded
from engine.types import Item, LaneSpec, Policy


@dataclass(slots=True, eq=False, kw_only=True)
class Entry:
    """An accepted item on its way through the engine.

    ``key`` is unique in the engine's life and rises, ``lane_id`` is unique in the model's. Items of
    one ``bucket`` may run as one batch. Times are seconds on the event loop's clock; ``bound_at``
    is when the item was last handed to a worker, ``losses`` how many workers died while they held
    it.
    """

    key: int
    lane_id: int
    item: Item
    offered_at: float
    bucket: int = 0
    bound_at: float = 0.0
    losses: int = 0

    def is_late(self, after: float) -> bool:
        """Whether the deadline is not later than ``after``."""
        return self.item.deadline is not None and self.item.deadline <= after


class RingLane:
    """Holds at most ``spec.capacity`` entries; a full lane does what ``spec.policy`` says.

    Entries leave oldest first within their bucket, except that ``pop_viable`` sets those aside
    for which it is too late. Every operation takes time in proportion to the number of different
    buckets in the lane, ``pop_viable`` amortised.
    """

    def __init__(self, spec: LaneSpec) -> None:
        self.spec = spec
        # Ordered dictionaries, not a ring of slots: removal by key stays O(1) and needs no
        # tombstones. The bound is the capacity, enforced by push.
        self._queues: dict[int, _Queue] = {}  # by bucket; none is empty
        self._length = 0
        self._waiting_since: float | None = None

    def __len__(self) -> int:
        return self._length

    @property
    def is_full(self) -> bool:
        return self._length >= self.spec.capacity

    @property
    def waiting_since(self) -> float | None:
        """Since when the lane has been waiting for a worker; None when it is empty.

        A newer item that displaces an older one inherits its wait: a stream that replaces its
        frame for ever must neither postpone the batch nor lose its place.
        """
        return self._waiting_since

    def has(self, bucket: int) -> bool:
        """Whether the lane holds something of this bucket."""
        return bucket in self._queues

    def head(self) -> Entry | None:
        """The entry that ``pop`` would take."""
        heads = [queue.head() for queue in self._queues.values()]
        return min(heads, key=_order, default=None)

    def entries(self, bucket: int) -> Iterator[Entry]:
        """What ``pop_viable`` may take: of this bucket, and not set aside."""
        queue = self._queues.get(bucket)
        if queue is not None:
            yield from queue.entries.values()

    def push(self, entry: Entry) -> Entry | None:
        """Append ``entry``; returns the one it displaced, if any.

        Raises:
            Overloaded: the lane is full and its policy keeps what it has; nothing changed.
        """
        displaced = None
        if self.is_full:
            if self.spec.policy is not Policy.LATEST:
                raise Overloaded(f"the stream already has {self._length} items waiting")
            displaced = self.head()
            assert displaced is not None
            self._take(displaced)
        self._queues.setdefault(entry.bucket, _Queue()).entries[entry.key] = entry
        self._length += 1
        if self._waiting_since is None:
            self._waiting_since = entry.offered_at
        return displaced

    def pop(self, bucket: int | None = None) -> Entry | None:
        """Take the oldest entry, of ``bucket`` if one is named; those set aside come first."""
        if bucket is None:
            entry = self.head()
        else:
            entry = self._queues[bucket].head() if bucket in self._queues else None
        if entry is not None:
            self._take(entry)
            self._restart_wait()
        return entry

    def pop_viable(self, after: float, bucket: int = 0) -> Entry | None:
        """Take the oldest entry of ``bucket`` whose deadline is later than ``after``.

        Entries passed over stay in the lane, set aside: only ``pop`` takes them from now on.
        """
        queue = self._queues.get(bucket)
        if queue is None:
            return None
        while queue.entries:
            entry = next(iter(queue.entries.values()))
            if not entry.is_late(after):
                self._take(entry)
                self._restart_wait()
                return entry
            queue.set_aside[entry.key] = queue.entries.pop(entry.key)
        return None

    def remove(self, entry: Entry) -> bool:
        """Take out one entry; False when it is not here."""
        queue = self._queues.get(entry.bucket)
        if queue is None or not queue.has(entry.key):
            return False
        self._take(entry)
        if self._length == 0:
            self._waiting_since = None
        return True

    def nearest_deadline(self) -> float | None:
        """O(len): the caller asks only while the lane holds less than one batch."""
        deadlines = [
            entry.item.deadline
            for queue in self._queues.values()
            for entries in (queue.entries, queue.set_aside)
            for entry in entries.values()
            if entry.item.deadline is not None
        ]
        return min(deadlines, default=None)

    def _take(self, entry: Entry) -> None:
        queue = self._queues[entry.bucket]
        queue.remove(entry.key)
        if not queue:
            del self._queues[entry.bucket]
        self._length -= 1

    def _restart_wait(self) -> None:
        """After a service the lane waits since its new head was offered."""
        head = self.head()
        self._waiting_since = None if head is None else head.offered_at


class _Queue:
    """The entries of one bucket, each dictionary oldest first."""

    def __init__(self) -> None:
        self.entries: OrderedDict[int, Entry] = OrderedDict()
        self.set_aside: OrderedDict[int, Entry] = OrderedDict()

    def __len__(self) -> int:
        return len(self.entries) + len(self.set_aside)

    def has(self, key: int) -> bool:
        return key in self.entries or key in self.set_aside

    def head(self) -> Entry:
        return next(iter((self.set_aside or self.entries).values()))

    def remove(self, key: int) -> None:
        if key in self.entries:
            del self.entries[key]
        else:
            del self.set_aside[key]


def _order(entry: Entry) -> int:
    return entry.key
