"""What one connection's network does, as far as its sender can know."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class NetworkState:
    """A measurement of one connection; the defaults are those of a network without faults.

    ``rtt_ms`` is the smoothed round trip and ``rttvar_ms`` its mean deviation, ``jitter_ms`` how
    much the delays of messages in a row differ, ``loss`` the share of segments sent again, 0 to 1.
    """

    rtt_ms: float = 0.0
    rttvar_ms: float = 0.0
    jitter_ms: float = 0.0
    loss: float = 0.0
