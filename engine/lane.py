"""A stream's bounded queue: accepted items that are not bound to a batch yet."""

from __future__ import annotations

from collections import OrderedDict
from dataclasses import dataclass

from engine.errors import Overloaded
from engine.types import Item, LaneSpec, Policy


@dataclass(slots=True, eq=False, kw_only=True)
class Entry:
    """An accepted item on its way through the engine.

    ``key`` is unique in the engine's life, ``lane_id`` in the model's. Times are seconds on the
    event loop's clock; ``bound_at`` is when the item was last handed to a worker, ``losses`` how
    many workers died while they held it.
    """

    key: int
    lane_id: int
    item: Item
    offered_at: float
    bound_at: float = 0.0
    losses: int = 0


class RingLane:
    """Holds at most ``spec.capacity`` entries; a full lane does what ``spec.policy`` says.

    Every operation is O(1), ``pop_viable`` amortised. Entries leave oldest first, except that
    ``pop_viable`` sets those aside for which it is too late.
    """

    def __init__(self, spec: LaneSpec) -> None:
        self.spec = spec
        # Ordered dictionaries, not a ring of slots: removal by key stays O(1) and needs no
        # tombstones. The bound is the capacity, enforced by push.
        self._entries: OrderedDict[int, Entry] = OrderedDict()
        self._set_aside: OrderedDict[int, Entry] = OrderedDict()
        self._waiting_since: float | None = None

    def __len__(self) -> int:
        return len(self._entries) + len(self._set_aside)

    @property
    def waiting_since(self) -> float | None:
        """Since when the lane has been waiting for a worker; None when it is empty.

        A newer item that displaces an older one inherits its wait: a stream that replaces its
        frame for ever must neither postpone the batch nor lose its place.
        """
        return self._waiting_since

    def push(self, entry: Entry) -> Entry | None:
        """Append ``entry``; returns the one it displaced, if any.

        Raises:
            Overloaded: the lane is full and its policy keeps what it has; nothing changed.
        """
        displaced = None
        if len(self) >= self.spec.capacity:
            if self.spec.policy is not Policy.LATEST:
                raise Overloaded(f"the stream already has {len(self)} items waiting")
            displaced = self._take_oldest()
        self._entries[entry.key] = entry
        if self._waiting_since is None:
            self._waiting_since = entry.offered_at
        return displaced

    def pop(self) -> Entry | None:
        """Take the oldest entry."""
        if len(self) == 0:
            return None
        entry = self._take_oldest()
        self._restart_wait()
        return entry

    def pop_viable(self, after: float) -> Entry | None:
        """Take the oldest entry whose deadline is later than ``after``.

        Entries passed over stay in the lane, set aside: only ``pop`` takes them from now on.
        """
        while self._entries:
            key, entry = self._entries.popitem(last=False)
            if entry.item.deadline is None or entry.item.deadline > after:
                self._restart_wait()
                return entry
            self._set_aside[key] = entry
        return None

    def remove(self, key: int) -> Entry | None:
        """Take out one entry; None when it is not here."""
        entry = self._entries.pop(key, None) or self._set_aside.pop(key, None)
        if len(self) == 0:
            self._waiting_since = None
        return entry

    def nearest_deadline(self) -> float | None:
        """O(len): the caller asks only while the lane holds less than one batch."""
        deadlines = [
            entry.item.deadline
            for entries in (self._entries, self._set_aside)
            for entry in entries.values()
            if entry.item.deadline is not None
        ]
        return min(deadlines, default=None)

    def _take_oldest(self) -> Entry:
        return (self._set_aside or self._entries).popitem(last=False)[1]

    def _restart_wait(self) -> None:
        """After a service the lane waits since its new head was offered."""
        head = next(iter((self._set_aside or self._entries).values()), None)
        self._waiting_since = None if head is None else head.offered_at
