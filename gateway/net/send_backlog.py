"""Tells whether what the kernel holds for a reader is acknowledged in time.

A reader that stalls need not leave anything waiting here: two results fit into the buffers of both
kernels and the transport, and then its camera has no credit for a third. The kernel goes on asking
for room without an end in sight; what it holds is the same broken promise.
"""

from __future__ import annotations

from gateway.net.network_sampler import ROUND_S
from gateway.stream.network_estimate import PathSample

# A look that comes so much late tells of a process that was suspended, or hung.
ASLEEP_S = 2 * ROUND_S


class SendBacklog:
    """One connection's, looked at about every ``ROUND_S``.

    What is held at one look has to be acknowledged within ``timeout_s``, give or take half a round.
    Time in which the process was suspended is not the reader's: it has until the next look.
    """

    __slots__ = ("_due", "_goal", "_timeout_s")

    def __init__(self, timeout_s: float) -> None:
        self._timeout_s = timeout_s
        self._goal: int | None = None  # bytes acknowledged since the connection began
        self._due = 0.0

    def is_overdue(self, sample: PathSample, now: float) -> bool:
        """Whether the reader has had its time, by a new look at the kernel's counters."""
        num_acked, num_held = sample.num_bytes_acked, sample.num_bytes_held
        if self._goal is None or num_acked >= self._goal:
            self._goal = num_acked + num_held if num_held else None
            self._due = now + self._timeout_s - ROUND_S / 2
            return False
        if now < self._due + ASLEEP_S:
            return now >= self._due
        self._due = now
        return False
