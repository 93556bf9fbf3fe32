"""When a result is shown: on a clock that runs evenly although results come unevenly."""

from __future__ import annotations

import bisect
import math
from collections import deque

QUANTILE = 0.95  # of the results come in time
WINDOW = 128  # results that are looked back at: about four seconds of a camera
MIN_SAMPLES = 8  # before that nothing is given up, and late in a row it means a wrong clock
RAISE_MARGIN_S = 0.002
LOWER_MARGIN_S = 0.010  # the delay stays as it is while it is too long by less
LOWER_RATE = 0.05  # of the time between two frames: nobody sees that much
_PERIOD_GAIN = 0.1


class PlayoutClock:
    """Maps capture times to playout times with an adaptive delay, as a jitter buffer does.

    The delay between a frame's capture (producer's clock) and its playout (``now``) is the 95 %
    quantile of the delays with which the last ``WINDOW`` results came. It is raised at once,
    because late results are seen, and lowered slowly and only by more than a margin. It never
    exceeds that of the quickest of these results by more than ``max_delay_s``. The clocks need not
    agree, and may drift. After Moon, Kurose and Towsley, "Packet audio playout delay adjustment"
    (1998).

    Playout times never fall. A result whose time has passed is played at once if the next frame's
    turn has not come, else it is late: ``schedule`` says None. As many late ones in a row as
    ``MIN_SAMPLES`` mean that the producer's clock has jumped, as one that falls does: the clock
    then begins anew.
    """

    def __init__(self, *, max_delay_s: float) -> None:
        if not max_delay_s > 0.0:
            raise ValueError(f"max_delay_s must be > 0, got {max_delay_s}")
        self._max_delay_s = max_delay_s
        self._last_playout = float("-inf")
        self._start()

    def _start(self) -> None:
        self._captured_at = float("-inf")
        self._period_s = 0.0
        self._offset_s = float("-inf")  # capture to playout, on two clocks
        self._delays: deque[float] = deque()
        self._sorted: list[float] = []
        self._num_samples = 0
        self._num_late = 0

    @property
    def delay_s(self) -> float:
        """How much longer results take than the quickest of the last ones, waiting included."""
        return self._offset_s - self._sorted[0] if self._sorted else 0.0

    def schedule(self, t_us: int, now: float) -> float | None:
        """When to play the result that has come ``now`` for a frame captured at ``t_us``; not
        before ``now``. None: it is too late to be shown."""
        captured_at = t_us / 1e6
        if captured_at <= self._captured_at:
            self._start()
        gap_s = self._advance(captured_at)
        self._adapt(now - captured_at, gap_s)
        playout = captured_at + self._offset_s
        is_late = now > playout + self._period_s
        if is_late and self._num_samples > MIN_SAMPLES:
            self._num_late += 1
            if self._num_late < MIN_SAMPLES:
                return None
            self._start()
            self._captured_at = captured_at
            self._adapt(now - captured_at, 0.0)
        self._num_late = 0
        self._last_playout = max(playout, now, self._last_playout)
        return self._last_playout

    def _advance(self, captured_at: float) -> float:
        """Note a capture time; returns how long after the one before it was."""
        before, self._captured_at = self._captured_at, captured_at
        if before == float("-inf"):
            return 0.0
        gap_s = captured_at - before
        if self._period_s == 0.0:
            self._period_s = gap_s
        # A pause is no period.
        self._period_s += _PERIOD_GAIN * (min(gap_s, 2 * self._period_s) - self._period_s)
        return gap_s

    def _adapt(self, delay_s: float, gap_s: float) -> None:
        if len(self._delays) == WINDOW:
            oldest = self._delays.popleft()
            del self._sorted[bisect.bisect_left(self._sorted, oldest)]
        self._delays.append(delay_s)
        bisect.insort(self._sorted, delay_s)
        self._num_samples += 1
        wanted = self._sorted[math.ceil(QUANTILE * len(self._sorted)) - 1]  # nearest rank
        longest = self._sorted[0] + self._max_delay_s
        if wanted > self._offset_s:
            self._offset_s = wanted + RAISE_MARGIN_S
        elif wanted < self._offset_s - LOWER_MARGIN_S:
            self._offset_s = max(wanted, self._offset_s - LOWER_RATE * gap_s)
        self._offset_s = min(self._offset_s, longest)
