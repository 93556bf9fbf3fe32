"""Whether a new version stays: it is compared with the one before over a trial window (pure)."""

from __future__ import annotations

from enum import Enum
from typing import NamedTuple

from engine.versions.figures import Experience

MIN_ANSWERS = 20  # of the new version, before its errors count
MIN_RESULTS = 30  # of either, in batches of one size, before their run times are compared
MAX_MORE_BAD = 0.05  # share of answers
MAX_SLOWDOWN = 1.5
SLACK_S = 0.005  # what a fast model may lose on top: timers and other people's work


class Verdict(Enum):
    """``OPEN`` while neither is sure."""

    OPEN = "open"
    STAYS = "stays"
    ROLL_BACK = "roll back"


class Judgement(NamedTuple):
    """``reason`` is for people; empty while the trial is open."""

    verdict: Verdict
    reason: str


class Trial:
    """One version's trial against what the version before achieved.

    A version that is worse is found out as soon as enough answers say so; one that is not stays
    when the window is over. Without enough answers of the old version only errors count.
    """

    def __init__(self, before: Experience, began_at: float, window_s: float) -> None:
        self._before = before
        self._ends_at = began_at + window_s

    def judge(self, now: float, experience: Experience, fault: str) -> Judgement:
        """``fault`` says why the version serves nothing at all; empty when it serves."""
        reason = f"it does not serve: {fault}" if fault else self._worse(experience)
        if reason:
            return Judgement(Verdict.ROLL_BACK, reason)
        if now >= self._ends_at:
            return Judgement(Verdict.STAYS, "passed its trial")
        return Judgement(Verdict.OPEN, "")

    def _worse(self, now: Experience) -> str:
        before = self._before
        if now.answers >= MIN_ANSWERS and now.bad_share > before.bad_share + MAX_MORE_BAD:
            return (
                f"{100 * now.bad_share:.0f} % of its last {now.answers} answers failed or came too "
                f"late, {100 * before.bad_share:.0f} % before"
            )
        for size, runs in sorted(now.runs.items()):
            usual_s = self._usual_run_s(size)
            if runs.results < MIN_RESULTS or usual_s is None:
                continue
            if runs.run_s > MAX_SLOWDOWN * usual_s + SLACK_S:
                return (
                    f"a batch of {size} takes {1000 * runs.run_s:.1f} ms (median), "
                    f"at most {1000 * usual_s:.1f} ms before"
                )
        return ""

    def _usual_run_s(self, size: int) -> float | None:
        """What a batch of ``size`` took at most before; None when too little is known.

        A slower version gets larger batches, so sizes differ. A smaller batch takes no longer
        than a larger one, and one twice as large no longer than twice as long.
        """
        return min(
            (
                runs.run_s * max(1.0, size / known)
                for known, runs in self._before.runs.items()
                if runs.results >= MIN_RESULTS
            ),
            default=None,
        )
