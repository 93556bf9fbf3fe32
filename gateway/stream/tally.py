"""Proves that every accepted frame is answered exactly once."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field

from engine.types import DropReason


@dataclass(slots=True)
class Tally:
    """Receipts by kind; every count is also made in ``parent``, which outlives this one.

    ``received == accepted + refused`` and
    ``accepted == results + dropped + errors + cancelled + in_flight`` hold between any two calls.
    A frame is counted under its answer when that answer is decided, not when it is written.
    """

    parent: Tally | None = None
    received: int = 0
    refused: int = 0
    accepted: int = 0
    results: int = 0
    errors: int = 0
    cancelled: int = 0
    dropped: Counter[DropReason] = field(default_factory=Counter)

    @property
    def num_dropped(self) -> int:
        return self.dropped.total()

    @property
    def in_flight(self) -> int:
        """Accepted frames whose answer is not decided."""
        return self.accepted - self.results - self.errors - self.cancelled - self.num_dropped

    def count_refused(self) -> None:
        self.received += 1
        self.refused += 1
        if self.parent is not None:
            self.parent.count_refused()

    def count_accepted(self) -> None:
        self.received += 1
        self.accepted += 1
        if self.parent is not None:
            self.parent.count_accepted()

    def count_result(self) -> None:
        self.results += 1
        if self.parent is not None:
            self.parent.count_result()

    def count_error(self) -> None:
        self.errors += 1
        if self.parent is not None:
            self.parent.count_error()

    def count_dropped(self, reason: DropReason, num_frames: int = 1) -> None:
        """``CANCELLED`` is told as a drop and counted on its own."""
        if reason is DropReason.CANCELLED:
            self.cancelled += num_frames
        else:
            self.dropped[reason] += num_frames
        if self.parent is not None:
            self.parent.count_dropped(reason, num_frames)

    def check_integrity(self) -> None:
        """Assert the sums; tests call it after every step."""
        assert self.received == self.accepted + self.refused, self
        assert self.in_flight >= 0, self
