"""Spreads messages over time: a burst at once, then an even rate."""

from __future__ import annotations


class LeakyBucket:
    """At most ``burst`` messages at once, then ``rate_hz`` a second (a virtual scheduler, GCRA).

    A message is never refused, only put off: ask for ``next_time``, then ``add`` it.
    """

    def __init__(self, rate_hz: float, burst: int) -> None:
        if not rate_hz > 0 or not burst >= 1:
            raise ValueError(f"rate {rate_hz} must be > 0 and burst {burst} >= 1")
        self._interval_s = 1.0 / rate_hz
        self._slack_s = (burst - 1) * self._interval_s
        self._empty_at = float("-inf")  # when everything that was added will have leaked out

    def next_time(self) -> float:
        """The earliest moment for the next message; may be in the past."""
        return self._empty_at - self._slack_s

    def add(self, now: float) -> None:
        """A message leaves."""
        self._empty_at = max(self._empty_at, now) + self._interval_s
