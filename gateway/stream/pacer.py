"""Token pacer: uneven engine output in, evenly spaced events out. Pure: every method takes ``now``.

Token k arrives at a_k and leaves at r_k >= a_k; T is the pace, announced with each event for the
gap that follows it; lag is r_k - a_k, spare the lag that the next unseen token would get. What
makes it work, in order of how much it matters (docs/decisions/009-token-pacer.md has the figures):

1. Start slow, not late. The first token leaves at once. The reserve that hides the engine's stalls
   is earned by pacing a little slower than the source: T = gap + (wanted reserve - spare) / n.
2. Slewed pace on absolute deadlines. T changes by at most 3 % per gap, and the next deadline is the
   last deadline plus T, so timer error does not add up. A late token starts a new grid: the debt is
   forgiven, never caught up by a burst.
3. Reserve from lateness. How far the source was behind its own mean says how much is needed; it
   starts from what the engine's earlier streams have shown.
4. Room to brake. The reserve is cut so that, should the source jump to the fastest pace, slewing
   down to it keeps the lag under the cap. A source that is faster still is held back by ``credit``.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence
from typing import Protocol

from gateway.stream.congestion import Congestion
from gateway.stream.pacer_settings import PacerSettings
from gateway.stream.pacer_source import SourceEstimate, SourcePrior
from gateway.stream.release import Departure, Reserve

LOW_RESERVE_SHARE = 0.2
LATE_GAPS, LOW_RESERVE = "late_gaps", "low_reserve"  # names of triggers
_NOTICE_GAPS = 4  # that pass before a change of the source's rate is seen


class Ceiling(Protocol):
    """A limit of the rate, of one stream or of many together."""

    def gap_s(self, now: float) -> float: ...

    def take(self, num_tokens: int, now: float) -> None: ...


class TokenPacer:
    """Decides when each token of one answer leaves; implements ``gateway.stream.release.Decider``.

    Promises: the first token is not delayed; every gap is the announced pace unless the source was
    late; the pace never jumps; while the engine honours ``credit`` no token is held longer than
    ``settings.lag_cap_s``, unless ``ceilings`` or ``congestion`` ask for less speed than that.
    ``triggers`` counts what was noticed and acted on, by name.
    """

    def __init__(
        self,
        settings: PacerSettings,
        prior: SourcePrior,
        *,
        ceilings: Sequence[Ceiling] = (),
        congestion: Congestion | None = None,
    ) -> None:
        self.reserve = Reserve()
        self.source = SourceEstimate(prior, settings.fastest_s)
        self.triggers: Counter[str] = Counter()
        self.pace_s = min(settings.start_ratio * prior.gap_s, self._slowest_of(settings))
        self.pace_s = max(self.pace_s, settings.fastest_s)
        self._settings = settings
        self._ceilings = ceilings
        self._congestion = congestion
        self._last_arrival: float | None = None
        self._deadline: float | None = None  # ideal time of the next release, free of timer error
        self._is_finished = False
        self._is_low = True  # a reserve that was never full cannot run low

    @property
    def tokens_per_s(self) -> float:
        return 1.0 / self.pace_s

    # --- events

    def push(self, text: str, now: float) -> None:
        self.reserve.push(text, now)
        if not text:
            return
        if self._last_arrival is not None:
            self.source.observe(now - self._last_arrival)
            self.triggers[LATE_GAPS] = self.source.num_late_runs
        self._last_arrival = now

    def finish(self, now: float) -> None:
        """The reserve has no further use: slew to the fastest pace and run dry."""
        self._is_finished = True

    def next_send_time(self, now: float) -> float | None:
        if not self.reserve:
            return None
        oldest_at = self.reserve.oldest_at
        return oldest_at if self._deadline is None else max(self._deadline, oldest_at)

    def take(self, now: float) -> Departure:
        arrived_at, underrun_s = self.reserve.oldest_at, 0.0
        if self._deadline is None:
            self._deadline = now
        elif arrived_at > self._deadline:  # the source was late, not our timer: a new grid
            underrun_s = arrived_at - self._deadline
            self._deadline = now
        num_texts = self._texts_per_event()
        text = self.reserve.pop(num_texts)
        for ceiling in self._ceilings:
            ceiling.take(num_texts, now)
        self.pace_s = self._next_pace(self._deadline, now)
        gap_s = num_texts * self.pace_s
        # The timer's lateness is made good at once, but no gap is shorter than its reader can take.
        earliest = now + (1.0 - self._settings.catch_up) * gap_s
        self._deadline = max(self._deadline + gap_s, earliest)
        return Departure(
            text=text,
            num_texts=num_texts,
            pace_s=gap_s,
            lag_s=now - arrived_at,
            underrun_s=underrun_s,
        )

    def credit(self, now: float) -> int:
        """Tokens the engine may still produce without one of them waiting beyond the lag cap; those
        of a step in flight are the caller's to subtract."""
        wait_s = 0.0 if self._deadline is None else max(0.0, self._deadline - now)
        num_welcome = int((self._settings.lag_cap_s - wait_s) / self.pace_s) + 1
        return max(0, num_welcome - len(self.reserve))

    # --- the pace of the next gap

    def _texts_per_event(self) -> int:
        if self._congestion is None or not self._congestion.is_active:
            return 1
        return min(len(self.reserve), self._settings.congested_texts)

    def _next_pace(self, deadline: float, now: float) -> float:
        settings, pace_s = self._settings, self.pace_s
        fastest_s = self._fastest_s(deadline)
        wanted_s = fastest_s if self._is_finished else self._steady_pace(deadline, fastest_s, now)
        if wanted_s > pace_s:
            wanted_s = self._within_cap(wanted_s, deadline)
        wanted_s = max(wanted_s, self._limit_s(now))
        return min(max(wanted_s, pace_s * (1 - settings.slew)), pace_s * (1 + settings.slew))

    def _steady_pace(self, deadline: float, fastest_s: float, now: float) -> float:
        """The source's gap plus a proportional correction of the reserve."""
        settings, gap_s = self._settings, self.source.gap_s
        last_arrival = now if self._last_arrival is None else self._last_arrival
        expected_at = max(now, last_arrival + gap_s)
        spare_s = deadline + (len(self.reserve) + 1) * self.pace_s - expected_at
        goal_s = self._reserve_goal()
        self._watch_reserve(spare_s, goal_s)
        missing_s = goal_s - spare_s
        num_tokens = settings.fill_tokens if missing_s > 0 else settings.drain_tokens
        slowest_s = self._slowest_of(settings)
        return min(max(gap_s + missing_s / num_tokens, fastest_s), slowest_s)

    def _watch_reserve(self, spare_s: float, goal_s: float) -> None:
        """Count when it runs low. The correction above then stretches the pace by all its slew."""
        is_low = spare_s < LOW_RESERVE_SHARE * goal_s
        if is_low and not self._is_low:
            self.triggers[LOW_RESERVE] += 1
            self._is_low = True
        elif spare_s > goal_s / 2:
            self._is_low = False

    def _reserve_goal(self) -> float:
        settings = self._settings
        most_s = settings.most_reserve_share * settings.lag_cap_s
        goal_s = min(settings.lateness_gain * self.source.lateness_s, most_s)
        fastest_s = settings.fastest_s
        pace_s = max(self.pace_s, self.source.gap_s, fastest_s)
        # Lag gained before a change is noticed, and while slewing from this pace to the fastest.
        braking_s = (pace_s - fastest_s - fastest_s * math.log(pace_s / fastest_s)) / settings.slew
        braking_s += _NOTICE_GAPS * (pace_s - fastest_s)
        return max(settings.least_reserve_s, min(goal_s, 0.95 * settings.lag_cap_s - braking_s))

    def _fastest_s(self, deadline: float) -> float:
        """The limit, unless the engine ignored its credit: then the limit yields, still slewing."""
        settings = self._settings
        newest_at = deadline if self._last_arrival is None else self._last_arrival
        newest_lag_s = deadline + len(self.reserve) * self.pace_s - newest_at
        if newest_lag_s > settings.lag_cap_s + self.pace_s:
            return min(settings.fastest_s, settings.yield_ratio * self.source.gap_s)
        return settings.fastest_s

    def _slowest_of(self, settings: PacerSettings) -> float:
        """A slower source is followed, and announced, as it is, with room to gain a reserve."""
        return max(settings.slowest_s, settings.follow_ratio * self.source.gap_s)

    def _within_cap(self, wanted_s: float, deadline: float) -> float:
        """Stretching must not push a token that is held already beyond the cap."""
        cap_s = self._settings.lag_cap_s
        for ahead, arrived_at in enumerate(self.reserve.arrivals(), 1):
            wanted_s = min(wanted_s, (arrived_at + cap_s - deadline) / ahead)
            if wanted_s <= self.pace_s:
                return self.pace_s
        return wanted_s

    def _limit_s(self, now: float) -> float:
        """The least gap that ceilings and the network allow."""
        limit_s = max((ceiling.gap_s(now) for ceiling in self._ceilings), default=0.0)
        if self._congestion is not None:
            factor = self._congestion.factor(now)
            if factor < 1.0:
                limit_s = max(limit_s, max(self.source.gap_s, self._settings.fastest_s) / factor)
        return limit_s
