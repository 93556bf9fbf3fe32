"""One stream's books: credit, frames in flight and their receipts. Pure; takes ``now``."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

from gateway.client.statistics import StreamStatistics
from gateway.wire.messages import Closed, CreditGrant

# A frame with one of these was not accepted, so the server's totals leave it out.
REFUSALS = frozenset(
    f"urn:clawstream:problem:{slug}"
    for slug in (
        "credit-exceeded",
        "frame-too-large",
        "invalid-picture",
        "picture-too-large",
        "seq-not-rising",
        "unknown-codec",
    )
)


@dataclass(slots=True)
class _Counts:
    """Receipts since the last ``open``, as the server's ``closed`` counts them."""

    sent: int = 0
    sent_bytes: int = 0
    answered: int = 0
    results: int = 0
    dropped: int = 0
    failed: int = 0  # errors and refusals together
    cancelled: int = 0


class _Sent(NamedTuple):
    """A frame in flight, as its source described it."""

    t_us: int
    media_time_s: float | None


class FrameLedger:
    """Says whether a frame may be sent and settles it exactly once.

    Receipts are counted from the messages themselves, so a missing or repeated one shows in
    ``statistics.receipts_add_up``. At most ``max_in_flight`` frames are under way, whatever the
    server grants.
    """

    def __init__(self, statistics: StreamStatistics, *, max_in_flight: int) -> None:
        self._statistics = statistics
        self._max_in_flight = max_in_flight
        self._flying: dict[int, _Sent] = {}  # by rising seq
        self._credit = CreditGrant(max_frames=0, max_bytes=0)
        self._counts = _Counts()

    @property
    def in_flight(self) -> int:
        return len(self._flying)

    def open(self, credit: CreditGrant) -> None:
        """The stream was opened, or opened again: credit counts from here."""
        self._counts = _Counts()
        self._credit = credit

    def grant(self, max_frames: int, max_bytes: int) -> None:
        """Limits only grow; an older grant changes nothing."""
        self._credit = CreditGrant(
            max_frames=max(self._credit.max_frames, max_frames),
            max_bytes=max(self._credit.max_bytes, max_bytes),
        )

    def can_send(self, size_bytes: int) -> bool:
        """Whether credit covers one more frame; one is always allowed when none is in flight."""
        if not self._flying:
            return True
        counts, credit = self._counts, self._credit
        return (
            self.in_flight < self._max_in_flight
            and counts.sent < credit.max_frames
            and counts.sent_bytes + size_bytes <= credit.max_bytes
        )

    def sent(self, seq: int, t_us: int, size_bytes: int, media_time_s: float | None = None) -> None:
        """The frame is about to leave."""
        self._flying[seq] = _Sent(t_us, media_time_s)
        self._counts.sent += 1
        self._counts.sent_bytes += size_bytes
        self._statistics.sent += 1
        self._update()

    def media_time_s(self, seq: int) -> float | None:
        """Position in the clip of a frame in flight, if it has one."""
        sent = self._flying.get(seq)
        return None if sent is None else sent.media_time_s

    def result(self, seq: int, now: float) -> float | None:
        """Settle a frame and return its age in seconds; None if it is not in flight."""
        self._counts.results += 1
        self._counts.answered += 1
        self._statistics.results += 1
        sent = self._flying.pop(seq, None)
        self._update()
        if sent is None:
            return None
        latency_s = now - sent.t_us / 1e6
        self._statistics.latencies_s.add(latency_s)
        return latency_s

    def drop(self, reason: str, first: int, last: int, count: int) -> None:
        """``count`` frames of ``first..last`` were given up: all that are still in flight there."""
        self._counts.answered += count
        if reason == "cancelled":
            self._counts.cancelled += count
            self._statistics.cancelled += count
        else:
            self._counts.dropped += count
            _add(self._statistics.dropped, reason, count)
        # Over what is in flight, not over the range: a range may be as long as 2**53.
        for seq in [seq for seq in self._flying if first <= seq <= last]:
            del self._flying[seq]
        self._update()

    def error(self, seq: int, problem_type: str) -> None:
        """The frame failed, or was refused."""
        self._counts.answered += 1
        self._counts.failed += 1
        if problem_type in REFUSALS:
            self._statistics.refused += 1
        else:
            self._statistics.errors += 1
        self._flying.pop(seq, None)
        self._update()

    def closed(self, totals: Closed) -> None:
        """The server's last word on the stream; whatever it did not answer stays unanswered."""
        counts = self._counts
        refused = counts.sent - totals.accepted
        self._statistics.closed = totals
        self._statistics.closed_matches &= (
            totals.accepted == totals.results + totals.dropped + totals.errors + totals.cancelled
            and totals.results == counts.results
            and totals.dropped == counts.dropped
            and totals.cancelled == counts.cancelled
            and totals.errors + refused == counts.failed
        )
        self.abandon()

    def disconnected(self) -> None:
        """The connection is lost: what is in flight will never be answered."""
        lost = self.in_flight
        if lost:
            _add(self._statistics.dropped, "disconnected", lost)
        self._flying.clear()
        self._update()

    def abandon(self) -> None:
        """Stop waiting for the receipts that are still missing."""
        self._statistics.unanswered += self.in_flight
        self._flying.clear()
        self._update()

    def _update(self) -> None:
        self._statistics.in_flight = self.in_flight


def _add(counts: dict[str, int], reason: str, count: int) -> None:
    # The protocol's list is short and closed; a server that invents reasons gets one bucket.
    key = reason if reason in counts or len(counts) < 32 else "other"
    counts[key] = counts.get(key, 0) + count
