"""What a pacer knows of its source: how fast it is, and how late it can be."""

from __future__ import annotations

from dataclasses import dataclass

from gateway.stream.pacer_settings import GAP_PRIOR_S, LATENESS_PRIOR_S

GAIN = 0.15  # of the mean gap; between 0.1 and 0.3 nothing changes, nor does adapting it
LATENESS_KEEP = 0.998  # what is left of the peak after a token: half of it after 350 of them
LONGEST_GAP_RATIO = 3.0  # one stall must not look like a slow source
LATE_GAP_RATIO = 1.5  # of the mean; so many late gaps in a row ask for more reserve
LATE_GAPS_IN_A_ROW = 3
# What an engine once did it can do again: its streams teach each other slowly to expect less, and
# never less than covers a change of its rate.
PRIOR_KEEP = 0.95
LEAST_PRIOR_S = 0.12
_GAP_PRIOR_GAIN = 0.2


@dataclass(slots=True)
class SourcePrior:
    """What one engine's streams have shown; the next one starts from it."""

    gap_s: float = GAP_PRIOR_S
    lateness_s: float = LATENESS_PRIOR_S

    def learn(self, source: SourceEstimate) -> None:
        """A stream is over."""
        self.gap_s += _GAP_PRIOR_GAIN * (source.gap_s - self.gap_s)
        seen_s = max(source.worst_s, LEAST_PRIOR_S)
        self.lateness_s = min(LATENESS_PRIOR_S, max(seen_s, PRIOR_KEEP * self.lateness_s))


class SourceEstimate:
    """``gap_s`` is the smoothed gap between arrivals, ``lateness_s`` a leaky peak of how far the
    source was behind its own mean: what a reserve has to cover. Only arrivals count, never what a
    pacer held back or released."""

    # On every token's path: see ``gateway.stream.stream_queue.StreamQueue``.
    __slots__ = (
        "_excursion_s",
        "_least_gap_s",
        "_num_late",
        "gap_s",
        "lateness_s",
        "num_late_runs",
        "worst_s",
    )

    def __init__(self, prior: SourcePrior, least_gap_s: float) -> None:
        self.gap_s = prior.gap_s
        self.lateness_s = prior.lateness_s
        self.worst_s = 0.0  # lateness that this stream has itself shown
        self.num_late_runs = 0
        self._least_gap_s = least_gap_s
        self._excursion_s = 0.0  # how far it is behind its mean right now
        self._num_late = 0

    def observe(self, gap_s: float) -> None:
        """A token arrived so long after the one before it."""
        mean_s = self.gap_s
        excursion_s = self._excursion_s + gap_s - mean_s
        if excursion_s < 0.0:
            excursion_s = 0.0
        elif excursion_s > self.worst_s:
            self.worst_s = excursion_s
        self._excursion_s = excursion_s
        faded_s = self.lateness_s * LATENESS_KEEP
        self.lateness_s = excursion_s if excursion_s > faded_s else faded_s
        if gap_s > LATE_GAP_RATIO * mean_s:
            self._note_late_gap()
            gap_s = min(gap_s, LONGEST_GAP_RATIO * max(mean_s, self._least_gap_s))
        else:
            self._num_late = 0
        self.gap_s += GAIN * (gap_s - mean_s)

    def _note_late_gap(self) -> None:
        self._num_late += 1
        if self._num_late == LATE_GAPS_IN_A_ROW:
            # It slows down, and the mean has not followed yet: what is late now will be later.
            self._num_late = 0
            self.num_late_runs += 1
            self.lateness_s += self._excursion_s / LATE_GAPS_IN_A_ROW
