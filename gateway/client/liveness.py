"""Whether the server still answers, and how its clock relates to ours. Takes ``now``."""

from __future__ import annotations

from collections import OrderedDict, deque
from dataclasses import dataclass

MAX_PINGS = 64  # unanswered ones that are remembered; the oldest is forgotten
MAX_SAMPLES = 16


@dataclass(frozen=True, slots=True, kw_only=True)
class ClockEstimate:
    """``server clock = local monotonic clock + offset_s``, wrong by at most ``rtt_s / 2``."""

    offset_s: float
    rtt_s: float


class Liveness:
    """Decides when to ping and when the peer counts as gone.

    Every ping must be answered within ``timeout_s``; other messages do not count, since a server
    that sends but no longer reads is of no use to a client that uploads.
    """

    def __init__(self, *, interval_s: float, timeout_s: float) -> None:
        self._interval_s = interval_s
        self._timeout_s = timeout_s
        self._sent_at: OrderedDict[float, float] = OrderedDict()  # t on the wire -> local time
        self._last_t = 0.0
        self._next_ping_at = 0.0
        self._samples: deque[ClockEstimate] = deque(maxlen=MAX_SAMPLES)

    @property
    def clock(self) -> ClockEstimate | None:
        """The newest samples' quickest answer, whose offset is the least uncertain."""
        return min(self._samples, key=lambda sample: sample.rtt_s, default=None)

    def is_ping_due(self, now: float) -> bool:
        return now >= self._next_ping_at

    def is_peer_gone(self, now: float) -> bool:
        oldest = next(iter(self._sent_at.values()), None)
        return oldest is not None and now - oldest >= self._timeout_s

    def ping(self, now: float) -> float:
        """Note a ping and return its ``t``: microseconds, on the clock of the frames' ``t_us``."""
        t = self._last_t = max(float(round(now * 1e6)), self._last_t + 1.0)
        self._sent_at[t] = now
        if len(self._sent_at) > MAX_PINGS:
            self._sent_at.popitem(last=False)
        self._next_ping_at = now + self._interval_s
        return t

    def pong(self, t: float, server_now_us: int, now: float) -> ClockEstimate | None:
        """A sample, or None if no such ping is waiting."""
        sent_at = self._sent_at.pop(t, None)
        if sent_at is None:
            return None
        middle_s = (sent_at + now) / 2
        sample = ClockEstimate(offset_s=server_now_us / 1e6 - middle_s, rtt_s=now - sent_at)
        self._samples.append(sample)
        return sample
