"""A token bucket that answers with a gap instead of yes or no, so that a pace can slew to it."""

from __future__ import annotations

from gateway.stream.network_state import NetworkState

LOW_WATER = 0.5  # of the capacity; below, the rate falls linearly towards the fill rate


class RateCeiling:
    """``fill_rate`` tokens a second in the long run, ``capacity`` of them faster.

    Above the low-water mark it sets no limit; below, the rate that it allows falls in proportion to
    what is left, from ``fastest_hz`` to ``fill_rate``. A pace that cannot change at once may
    overdraw it a little. ``num_sharing`` streams may draw on one: each gets its part of the rate.
    """

    def __init__(self, *, capacity: float, fill_rate: float, fastest_hz: float) -> None:
        if not capacity > 0 or not fill_rate > 0:
            raise ValueError(f"capacity {capacity} and fill rate {fill_rate} must be > 0")
        self.num_sharing = 1
        self._capacity = capacity
        self._fill_rate = fill_rate
        self._fastest_hz = max(fastest_hz, fill_rate)
        self._network_factor = 1.0
        self._level = capacity
        self._updated_at = float("-inf")

    @property
    def fill_rate(self) -> float:
        """Tokens per second as the network allows them."""
        return self._fill_rate * self._network_factor

    def note(self, network: NetworkState) -> None:
        """A network that loses or jitters gets less to carry."""
        self._network_factor = max(0.05, 1.0 - network.loss) / (1.0 + network.jitter_ms / 100.0)

    def gap_s(self, now: float) -> float:
        """The least gap between two tokens of one stream; 0.0 sets no limit."""
        self._fill(now)
        low = LOW_WATER * self._capacity
        if self._level >= low:
            return 0.0
        share = max(0.0, self._level) / low
        rate = self.fill_rate + share * (self._fastest_hz - self.fill_rate)
        return self.num_sharing / rate

    def take(self, num_tokens: int, now: float) -> None:
        self._fill(now)
        self._level -= num_tokens

    def _fill(self, now: float) -> None:
        elapsed_s = now - self._updated_at
        if elapsed_s > 0.0:
            self._level = min(self._capacity, self._level + elapsed_s * self.fill_rate)
            self._updated_at = now
