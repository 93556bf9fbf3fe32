"""From counters of the kernel and answered pings to the state of one connection's network."""

from __future__ import annotations

from dataclasses import dataclass

from gateway.stream.network_state import NetworkState

JITTER_GAIN = 1 / 16  # RFC 3550, 6.4.1
LOSS_GAIN = 0.3  # per sample; at one a second, what happened five seconds ago weighs a sixth


@dataclass(frozen=True, slots=True, kw_only=True)
class PathSample:
    """What the kernel knows of a connection. Segments and bytes are counted since it began.

    Both counters of segments are 0 where the kernel does not say how many carried data, and both of
    bytes where it does not say how many were acknowledged. What it holds is sent and not yet
    acknowledged, or not even sent.
    """

    rtt_s: float
    rttvar_s: float
    num_segments: int
    num_retransmitted: int
    num_bytes_acked: int = 0
    num_bytes_held: int = 0


class NetworkEstimate:
    """Keeps ``state`` up to date.

    Pings measure jitter as RFC 3550 does: their answers leave at once, from the client itself,
    where the kernel's deviation ends at the next proxy and includes acknowledgements that are
    delayed on purpose. Until two pings are answered the kernel's has to do. Loss is the share of
    segments sent again, smoothed over samples that sent any.
    """

    def __init__(self) -> None:
        self.state = NetworkState()
        self._sample: PathSample | None = None
        self._loss = 0.0
        self._ping_rtt_s: float | None = None
        self._jitter_s: float | None = None

    def note_path(self, sample: PathSample) -> None:
        """A new look at the kernel's counters."""
        before = self._sample
        self._sample = sample
        if before is not None:
            num_sent = sample.num_segments - before.num_segments
            num_again = sample.num_retransmitted - before.num_retransmitted
            if num_sent > 0 and num_again >= 0:
                self._loss += LOSS_GAIN * (min(1.0, num_again / num_sent) - self._loss)
        self._update()

    def note_ping(self, rtt_s: float) -> None:
        """A ping was answered."""
        before, self._ping_rtt_s = self._ping_rtt_s, rtt_s
        if before is not None:
            deviation_s = abs(rtt_s - before)
            jitter_s = deviation_s if self._jitter_s is None else self._jitter_s
            self._jitter_s = jitter_s + JITTER_GAIN * (deviation_s - jitter_s)
        self._update()

    def _update(self) -> None:
        ping_rtt_s = self._ping_rtt_s or 0.0
        rtt_s, rttvar_s = ping_rtt_s, 0.0
        if self._sample is not None:
            rtt_s, rttvar_s = self._sample.rtt_s, self._sample.rttvar_s
        jitter_s = rttvar_s if self._jitter_s is None else self._jitter_s
        self.state = NetworkState(
            rtt_ms=1e3 * rtt_s, rttvar_ms=1e3 * rttvar_s, jitter_ms=1e3 * jitter_s, loss=self._loss
        )
