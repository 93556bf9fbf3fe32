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

Every token of the process passes here. Where a comparison stands instead of ``max`` it is for that:
a call of it costs 0.1 us, and there were 20 of them for each token.
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

    # On every token's path: see ``gateway.stream.stream_queue.StreamQueue``.
    __slots__ = (
        "_ceilings",
        "_congestion",
        "_deadline",
        "_is_finished",
        "_is_low",
        "_last_arrival",
        "_most_reserve_s",
        "_settings",
        "pace_s",
        "reserve",
        "source",
        "triggers",
    )

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
        slowest_s = max(settings.slowest_s, settings.follow_ratio * prior.gap_s)
        self.pace_s = max(settings.fastest_s, min(settings.start_ratio * prior.gap_s, slowest_s))
        self._settings = settings
        self._ceilings = ceilings
        self._congestion = congestion
        self._most_reserve_s = settings.most_reserve_share * settings.lag_cap_s
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
            source = self.source
            num_late_runs = source.num_late_runs
            source.observe(now - self._last_arrival)
            if source.num_late_runs != num_late_runs:
                self.triggers[LATE_GAPS] = source.num_late_runs
        self._last_arrival = now

    def finish(self, now: float) -> None:
        """The reserve has no further use: slew to the fastest pace and run dry."""
        self._is_finished = True

    def next_send_time(self, now: float) -> float | None:
        pieces, deadline = self.reserve.pieces, self._deadline
        if not pieces:
            return None
        oldest_at = pieces[0][0]
        return oldest_at if deadline is None or oldest_at > deadline else deadline

    def take(self, now: float) -> Departure:
        arrived_at, deadline, underrun_s = self.reserve.pieces[0][0], self._deadline, 0.0
        if deadline is None:
            deadline = now
        elif arrived_at > deadline:  # the source was late, not our timer: a new grid
            underrun_s = arrived_at - deadline
            deadline = now
        congestion, num_texts = self._congestion, 1
        if congestion is not None and not congestion.is_over and congestion.is_active:
            num_texts = min(len(self.reserve), self._settings.congested_texts)
        text = self.reserve.pop() if num_texts == 1 else self.reserve.pop_some(num_texts)
        for ceiling in self._ceilings:
            ceiling.take(num_texts, now)
        self.pace_s = self._next_pace(deadline, now)
        gap_s = num_texts * self.pace_s
        # The timer's lateness is made good at once, but no gap is shorter than its reader can take.
        earliest = now + (1.0 - self._settings.catch_up) * gap_s
        deadline += gap_s
        self._deadline = deadline if deadline > earliest else earliest
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

    def _next_pace(self, deadline: float, now: float) -> float:
        settings, pace_s = self._settings, self.pace_s
        newest_at = now if self._last_arrival is None else self._last_arrival
        held_until = deadline + len(self.reserve.pieces) * pace_s
        fastest_s = settings.fastest_s
        if held_until - newest_at > settings.lag_cap_s + pace_s:
            # The engine ignored its credit: the limit yields, still slewing.
            fastest_s = min(fastest_s, settings.yield_ratio * self.source.gap_s)
        wanted_s = fastest_s
        if not self._is_finished:
            expected_at = newest_at + self.source.gap_s
            spare_s = held_until + pace_s - (expected_at if expected_at > now else now)
            wanted_s = self._steady_pace(spare_s, fastest_s)
        if wanted_s > pace_s:
            wanted_s = self._within_cap(wanted_s, deadline)
        if self._ceilings or (self._congestion is not None and not self._congestion.is_over):
            limit_s = self._limit_s(now)
            wanted_s = limit_s if limit_s > wanted_s else wanted_s
        least_s, most_s = pace_s * (1 - settings.slew), pace_s * (1 + settings.slew)
        return least_s if wanted_s < least_s else most_s if wanted_s > most_s else wanted_s

    def _steady_pace(self, spare_s: float, fastest_s: float) -> float:
        """The source's gap plus a proportional correction of the reserve."""
        settings, gap_s = self._settings, self.source.gap_s
        goal_s = self._reserve_goal()
        if spare_s > goal_s / 2:
            self._is_low = False
        elif spare_s < LOW_RESERVE_SHARE * goal_s and not self._is_low:
            # The correction below stretches the pace by all its slew.
            self.triggers[LOW_RESERVE] += 1
            self._is_low = True
        missing_s = goal_s - spare_s
        wanted_s = gap_s + missing_s / (
            settings.fill_tokens if missing_s > 0 else settings.drain_tokens
        )
        if wanted_s < fastest_s:
            wanted_s = fastest_s
        # A slower source is followed, and announced, as it is, with room to gain a reserve.
        slowest_s = settings.follow_ratio * gap_s
        if slowest_s < settings.slowest_s:
            slowest_s = settings.slowest_s
        return wanted_s if wanted_s < slowest_s else slowest_s

    def _reserve_goal(self) -> float:
        settings = self._settings
        goal_s, fastest_s = settings.lateness_gain * self.source.lateness_s, settings.fastest_s
        if goal_s > self._most_reserve_s:
            goal_s = self._most_reserve_s
        pace_s = self.pace_s if self.pace_s > self.source.gap_s else self.source.gap_s
        if pace_s > fastest_s:
            # Lag gained before a change is noticed, and while slewing from this pace to the
            # fastest.
            too_fast_s = pace_s - fastest_s
            slewing_s = too_fast_s - fastest_s * math.log(pace_s / fastest_s)
            braking_s = slewing_s / settings.slew + _NOTICE_GAPS * too_fast_s
            if goal_s > 0.95 * settings.lag_cap_s - braking_s:
                goal_s = 0.95 * settings.lag_cap_s - braking_s
        return goal_s if goal_s > settings.least_reserve_s else settings.least_reserve_s

    def _within_cap(self, wanted_s: float, deadline: float) -> float:
        """Stretching must not push a token that is held already beyond the cap."""
        cap_s, pieces = self._settings.lag_cap_s, self.reserve.pieces
        if not pieces or deadline + len(pieces) * wanted_s <= pieces[0][0] + cap_s:
            return wanted_s  # there is room for the youngest as if it were the oldest
        for ahead, (arrived_at, _, _) in enumerate(pieces, 1):
            wanted_s = min(wanted_s, (arrived_at + cap_s - deadline) / ahead)
            if wanted_s <= self.pace_s:
                return self.pace_s
        return wanted_s

    def _limit_s(self, now: float) -> float:
        """The least gap that ceilings and the network allow."""
        limit_s = 0.0
        for ceiling in self._ceilings:
            limit_s = max(limit_s, ceiling.gap_s(now))
        if self._congestion is not None:
            factor = self._congestion.factor(now)
            if factor < 1.0:
                limit_s = max(limit_s, max(self.source.gap_s, self._settings.fastest_s) / factor)
        return limit_s
