"""The client's clock, as far as answered pings tell."""

from __future__ import annotations

from collections import deque
from typing import NamedTuple

# The newest answers, of which the quickest counts: at one in ten seconds, clocks that run apart by
# 50 parts in a million have moved by 8 ms since the oldest.
MAX_SAMPLES = 16
# A frame that seems older than this, or from the future, is labelled by another clock.
MAX_AGE_S = 60.0
MAX_AHEAD_S = 1.0


class _Sample(NamedTuple):
    rtt_s: float
    offset_s: float  # what our clock shows more than the client's


class ClientClock:
    """Estimates the offset of the client's clock (Cristian's algorithm) and the age of its frames.

    The client read its clock somewhere between our ping and its answer, so the middle is wrong by
    at most half of the round trip: the quickest answer is the best.
    """

    def __init__(self) -> None:
        self._samples: deque[_Sample] = deque(maxlen=MAX_SAMPLES)

    @property
    def offset_s(self) -> float | None:
        """What our clock shows more than the client's; None before it has told any time."""
        return min(self._samples).offset_s if self._samples else None

    def forget(self) -> None:
        """Another connection, and perhaps another clock."""
        self._samples.clear()

    def note(self, client_us: int, *, sent_at: float, answered_at: float) -> None:
        """A ping of ours came back with the client's time on it."""
        middle = (sent_at + answered_at) / 2
        self._samples.append(_Sample(answered_at - sent_at, middle - client_us / 1e6))

    def age_s(self, t_us: int, now: float) -> float:
        """How long ago ``t_us`` was; 0 if the clock is not known, or not the one of ``t_us``."""
        offset_s = self.offset_s
        if offset_s is None:
            return 0.0
        age_s = now - (t_us / 1e6 + offset_s)
        return max(0.0, age_s) if -MAX_AHEAD_S <= age_s <= MAX_AGE_S else 0.0
