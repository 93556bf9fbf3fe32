"""Tells that a connection's network is congested, and by how much its text slows down meanwhile."""

from __future__ import annotations

from gateway.stream.network_state import NetworkState

JUMP_MS = 50.0  # of the round trip, above what is usual
CLEAR_MS = 25.0
SLOW_DOWN_PER_S = 0.10
LEAST_FACTOR = 0.25
USUAL_GAIN = 0.1  # per measurement
# A delay that stays is a longer way, not a queue.
ACCEPT_AFTER_S = 10.0


class Congestion:
    """One connection's; ``note`` takes measurements as they come.

    ``factor`` multiplies rates: it falls by a tenth per second while the round trip is more than
    ``JUMP_MS`` above the usual one, down to ``LEAST_FACTOR``, and rises as fast once it is over.
    """

    def __init__(self) -> None:
        self.num_jumps = 0
        self.is_over = True  # nothing is slowed down, nor was a moment ago: most of the time
        self._usual_ms: float | None = None
        self._since: float | None = None
        self._factor = 1.0
        self._updated_at = float("-inf")

    @property
    def is_active(self) -> bool:
        return self._since is not None

    def note(self, network: NetworkState, now: float) -> None:
        self.factor(now)  # what has passed until now counts under the old state
        if self._usual_ms is None:
            self._usual_ms = network.rtt_ms
        above_ms = network.rtt_ms - self._usual_ms
        if self._since is None and above_ms > JUMP_MS:
            self._since = now
            self.num_jumps += 1
        elif self._since is not None:
            if now - self._since >= ACCEPT_AFTER_S:
                self._usual_ms = network.rtt_ms
                self._since = None
            elif above_ms < CLEAR_MS:
                self._since = None
        self.is_over = self._since is None and self._factor == 1.0
        if self._since is None:
            self._usual_ms += USUAL_GAIN * (network.rtt_ms - self._usual_ms)

    def factor(self, now: float) -> float:
        """LEAST_FACTOR to 1."""
        elapsed_s = now - self._updated_at
        self._updated_at = max(now, self._updated_at)
        if 0.0 < elapsed_s < float("inf") and (self._factor < 1.0 or self.is_active):
            change = (1.0 - SLOW_DOWN_PER_S) ** elapsed_s
            factor = self._factor * change if self.is_active else self._factor / change
            self._factor = min(1.0, max(LEAST_FACTOR, factor))
            self.is_over = self._since is None and self._factor == 1.0
        return self._factor
