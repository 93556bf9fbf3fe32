"""Tells whether what the kernel holds for a reader is acknowledged in time.

Whatever waits for a reader, the kernel holds the first of it. A writer's own wait for room would
tell less: a reader that stalls need not leave anything waiting here, since two results fit into the
buffers of both kernels and the transport, and then its camera has no credit for a third; and one
that reads a large result slowly makes the writer wait, but not for long for a first part of it.
"""

from __future__ import annotations

from gateway.net.network_sampler import ROUND_S
from gateway.stream.network_estimate import PathSample

# What comes so much later than the look before it tells of a process that was suspended, or hung.
LONGEST_S = 2 * ROUND_S


class SendBacklog:
    """One connection's, looked at about every ``ROUND_S``.

    What is held at one look has to be acknowledged within ``timeout_s``, give or take half a round,
    however much more is sent meanwhile: a reader need not be fast, and one that trickles is slow.
    Time in which the process was suspended is not the reader's: it counts as ``LONGEST_S``.
    """

    __slots__ = ("_goal", "_looked_at", "_timeout_s", "_waited_s")

    def __init__(self, timeout_s: float) -> None:
        self._timeout_s = timeout_s
        self._goal: int | None = None  # bytes acknowledged since the connection began
        self._looked_at = 0.0
        self._waited_s = 0.0

    def is_overdue(self, sample: PathSample, now: float) -> bool:
        """Whether the reader has had its time, by a new look at the kernel's counters."""
        since_s = now - self._looked_at
        self._looked_at = now
        num_acked, num_held = sample.num_bytes_acked, sample.num_bytes_held
        if self._goal is None or num_acked >= self._goal:
            self._goal = num_acked + num_held if num_held else None
            self._waited_s = 0.0
            return False
        self._waited_s += min(since_s, LONGEST_S)
        return self._waited_s >= self._timeout_s - ROUND_S / 2
