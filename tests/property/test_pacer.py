"""Any source, any timer noise: what the pacer promises while the engine honours its credit."""

from __future__ import annotations

from itertools import pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gateway.stream.pacer import TokenPacer
from gateway.stream.pacer_settings import PacerSettings
from gateway.stream.pacer_source import SourcePrior

pytestmark = pytest.mark.property

SETTINGS = PacerSettings()
NOISE_S = 0.001  # early or late, of a timer
# What a source does for a while: its gap, how much that varies, for how many tokens.
PHASE = st.tuples(
    st.sampled_from([0.0, 0.004, 0.012, 0.02, 0.03, 0.05, 0.09, 0.4]),
    st.sampled_from([0.0, 0.2, 1.0]),
    st.integers(1, 120),
)


class Closed:
    """Engine and pacer as a closed loop; ``in_flight`` tokens of a step arrive once begun."""

    def __init__(self, pacer: TokenPacer, gaps: list[float], in_flight: int, data: st.DataObject):
        self.pacer, self.gaps, self.in_flight = pacer, gaps, in_flight
        self.noise = data.draw(st.randoms(use_true_random=False))
        self.lags: list[float] = []
        self.times: list[float] = []
        self.paces: list[float] = []
        self.is_underrun: list[bool] = []

    def run(self) -> None:
        pacer, gaps = self.pacer, list(reversed(self.gaps))
        now = ready_at = 0.0
        while gaps or pacer.reserve:
            send_at = pacer.next_send_time(now)
            if send_at is not None:
                noise_s = self.noise.uniform(-NOISE_S, NOISE_S) if self.times else 0.0
                send_at = max(now, pacer.reserve.oldest_at, send_at + noise_s)
            push_at = max(now, ready_at)
            can_push = bool(gaps) and pacer.credit(push_at) > self.in_flight
            if can_push and (send_at is None or push_at <= send_at):
                now = push_at
                for _ in range(min(1 + self.in_flight, len(gaps))):
                    ready_at = now + gaps.pop()
                    pacer.push("x", now)
                if not gaps:
                    pacer.finish(now)
            else:
                assert send_at is not None, "no credit although nothing is held"
                now = send_at
                self.leave(now)

    def leave(self, now: float) -> None:
        departure = self.pacer.take(now)
        assert departure.pace_s is not None
        self.times.append(now)
        self.lags.append(departure.lag_s)
        self.paces.append(departure.pace_s)
        self.is_underrun.append(departure.underrun_s > 0.0)


@given(phases=st.lists(PHASE, min_size=1, max_size=5), step=st.integers(1, 4), data=st.data())
@settings(max_examples=60)
def test_no_token_waits_too_long_no_gap_is_short_and_no_pace_jumps(
    phases: list[tuple[float, float, int]], step: int, data: st.DataObject
) -> None:
    noise = data.draw(st.randoms(use_true_random=False))
    gaps = [
        gap_s * noise.uniform(1 - spread, 1 + spread)
        for gap_s, spread, num_tokens in phases
        for _ in range(num_tokens)
    ]
    loop = Closed(TokenPacer(SETTINGS, SourcePrior()), gaps, step - 1, data)
    loop.run()
    assert len(loop.times) == len(gaps)
    assert loop.lags[0] == 0.0
    assert max(loop.lags) <= SETTINGS.lag_cap_s + 2 * NOISE_S
    gaps_seen = [later - earlier for earlier, later in pairwise(loop.times)]
    for gap_s, pace_s in zip(gaps_seen, loop.paces, strict=False):
        assert gap_s >= 0.85 * pace_s - 1e-9
    for earlier, later in pairwise(loop.paces):
        assert abs(later / earlier - 1) <= SETTINGS.slew + 1e-9
    # Only a source that was late makes a gap longer than its pace.
    for gap_s, pace_s, late in zip(gaps_seen, loop.paces, loop.is_underrun[1:], strict=False):
        assert late or gap_s <= pace_s + 2 * NOISE_S + 1e-9
