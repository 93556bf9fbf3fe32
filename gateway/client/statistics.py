"""What became of the frames of one stream, as the client counted it."""

from __future__ import annotations

import random
from dataclasses import dataclass, field

from gateway.wire.messages import Closed

RESERVOIR_SIZE = 4096


class Reservoir:
    """A uniform sample of at most ``capacity`` of all values added (Vitter's algorithm R)."""

    def __init__(self, capacity: int = RESERVOIR_SIZE) -> None:
        self._capacity = capacity
        self._values: list[float] = []
        self._num_added = 0
        self._random = random.Random(0)  # reproducible; nothing depends on it being secret

    def __len__(self) -> int:
        return len(self._values)

    def add(self, value: float) -> None:
        self._num_added += 1
        if len(self._values) < self._capacity:
            self._values.append(value)
            return
        index = self._random.randrange(self._num_added)
        if index < self._capacity:
            self._values[index] = value

    def percentile(self, percent: float) -> float | None:
        """Nearest-rank percentile, ``percent`` in 0..100; None while empty."""
        if not self._values:
            return None
        ordered = sorted(self._values)
        rank = max(1, -(-len(ordered) * percent // 100))
        return ordered[min(int(rank), len(ordered)) - 1]


@dataclass(slots=True)
class StreamStatistics:
    """Counters of one stream, over all its connections; read them at any time.

    Frames that never left (``dropped_at_capture``) and results that nobody took
    (``discarded_unread``, also counted as results) stand beside the receipts.
    """

    sent: int = 0
    results: int = 0
    dropped: dict[str, int] = field(default_factory=dict)  # by reason, ``disconnected`` included
    errors: int = 0  # accepted frames that failed
    cancelled: int = 0
    refused: int = 0  # frames that the server did not accept
    unanswered: int = 0  # the stream ended without their receipts
    in_flight: int = 0
    dropped_at_capture: int = 0
    discarded_unread: int = 0
    latencies_s: Reservoir = field(default_factory=Reservoir)
    closed: Closed | None = None  # the server's totals since the last ``open``
    closed_matches: bool = True  # those totals, compared with our own

    @property
    def answered(self) -> int:
        """Frames with a receipt."""
        drops = sum(self.dropped.values())
        return self.results + drops + self.errors + self.cancelled + self.refused

    @property
    def receipts_add_up(self) -> bool:
        """Every frame sent has exactly one receipt, or is in flight, and the server agrees."""
        all_there = self.sent == self.answered + self.in_flight and self.unanswered == 0
        return all_there and self.closed_matches
