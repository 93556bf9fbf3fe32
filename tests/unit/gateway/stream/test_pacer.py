"""The pacer in virtual time: what each of its rules does for the reader."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Sequence
from itertools import pairwise

import pytest

from gateway.stream.congestion import Congestion
from gateway.stream.network_state import NetworkState
from gateway.stream.pacer import LATE_GAPS, LOW_RESERVE, Ceiling, TokenPacer
from gateway.stream.pacer_settings import LATENESS_PRIOR_S, PacerSettings
from gateway.stream.pacer_source import SourcePrior
from gateway.stream.rate_ceiling import RateCeiling
from gateway.stream.release import Departure

pytestmark = pytest.mark.unit

SETTINGS = PacerSettings()


class Reader:
    """What left, and when; timers are exact."""

    def __init__(
        self,
        ceilings: Sequence[Ceiling] = (),
        congestion: Congestion | None = None,
        prior: SourcePrior | None = None,
    ) -> None:
        prior = prior or SourcePrior()
        self.pacer = TokenPacer(SETTINGS, prior, ceilings=ceilings, congestion=congestion)
        self.times: list[float] = []
        self.departures: list[Departure] = []

    def push(self, now: float, text: str = "x") -> None:
        self.run(now)
        self.pacer.push(text, now)

    def run(self, until: float) -> None:
        while True:
            at = self.pacer.next_send_time(until)
            if at is None or at > until:
                return
            self.times.append(at)
            self.departures.append(self.pacer.take(at))

    def feed(self, gap_s: float, num_tokens: int, start: float = 0.0) -> float:
        for index in range(num_tokens):
            self.push(start + index * gap_s)
        return start + num_tokens * gap_s

    @property
    def paces(self) -> list[float]:
        return [d.pace_s for d in self.departures if d.pace_s is not None]

    @property
    def gaps(self) -> list[float]:
        return [later - earlier for earlier, later in pairwise(self.times)]


def test_the_first_token_leaves_at_once_and_the_next_after_the_pace_it_announced() -> None:
    reader = Reader()
    reader.push(5.0, "a")
    reader.push(5.0, "b")
    reader.run(6.0)
    assert reader.times[0] == 5.0
    assert reader.gaps == pytest.approx(reader.paces[:1])
    assert [departure.text for departure in reader.departures] == ["a", "b"]


def test_gaps_are_what_was_announced_and_paces_change_by_the_slew_at_most() -> None:
    reader = Reader()
    reader.feed(0.025, 300)
    assert reader.gaps == pytest.approx(reader.paces[: len(reader.gaps)])
    for earlier, later in pairwise(reader.paces):
        assert abs(later / earlier - 1) <= SETTINGS.slew + 1e-9


def test_the_pace_finds_the_rate_of_its_source_and_keeps_a_reserve() -> None:
    reader = Reader()
    end = reader.feed(0.025, 600)
    assert reader.paces[-1] == pytest.approx(0.025, rel=0.05)
    spare_s = end - reader.times[-1] + len(reader.pacer.reserve) * 0.025
    assert 0.1 < spare_s < SETTINGS.lag_cap_s


def test_a_stall_is_not_seen_once_there_is_a_reserve() -> None:
    reader = Reader()
    end = reader.feed(0.025, 100)
    reader.feed(0.025, 50, start=end + 0.25)
    assert all(departure.underrun_s == 0.0 for departure in reader.departures)
    assert max(reader.gaps) <= SETTINGS.slowest_s + 1e-9


def test_a_token_that_comes_late_starts_a_new_grid_and_nothing_is_caught_up() -> None:
    reader = Reader()
    reader.feed(0.025, 5)
    reader.run(5.0)
    for _ in range(4):
        reader.push(10.0)
    reader.run(11.0)
    assert reader.departures[5].underrun_s > 1.0
    assert min(reader.gaps) >= 0.9 * SETTINGS.fastest_s


def test_a_slow_source_is_followed_and_announced_as_it_is() -> None:
    reader = Reader()
    reader.feed(0.2, 80)
    assert reader.paces[-1] == pytest.approx(0.2, rel=0.16)


def test_a_source_that_ignores_its_credit_is_followed_too() -> None:
    reader = Reader()
    reader.feed(0.005, 2000)
    assert reader.paces[-1] < SETTINGS.fastest_s / 2


def test_credit_ends_where_a_token_would_wait_beyond_the_cap() -> None:
    pacer = TokenPacer(SETTINGS, SourcePrior())
    granted = pacer.credit(0.0)
    assert granted == int(SETTINGS.lag_cap_s / pacer.pace_s) + 1
    for _ in range(granted):
        pacer.push("x", 0.0)
    assert pacer.credit(0.0) == 0


def test_at_the_end_the_reserve_runs_dry_faster() -> None:
    reader = Reader()
    end = reader.feed(0.025, 200)
    held, pace_s = len(reader.pacer.reserve), reader.pacer.pace_s
    reader.pacer.finish(end)
    reader.run(end + 10)
    assert reader.times[-1] - end < held * pace_s
    assert not reader.pacer.reserve


def test_invisible_tokens_are_no_events_and_count_as_released_with_what_they_led_to() -> None:
    reader = Reader()
    reader.push(0.0, "")
    assert reader.pacer.reserve.num_released == 1
    reader.push(0.0, "a")
    reader.push(0.0, "b")
    reader.push(0.0, "")
    assert reader.pacer.reserve.num_released == 2  # and "b" with what came after it waits
    reader.run(1.0)
    assert reader.pacer.reserve.num_released == 4
    assert [departure.text for departure in reader.departures] == ["a", "b"]


def test_three_late_gaps_in_a_row_raise_the_reserve() -> None:
    prior = SourcePrior(gap_s=0.02, lateness_s=0.05)
    reader = Reader(prior=prior)
    end = reader.feed(0.02, 50)
    before = reader.pacer.source.lateness_s
    reader.feed(0.06, 3, start=end + 0.04)
    assert reader.pacer.triggers[LATE_GAPS] == 1
    assert reader.pacer.source.lateness_s > before + 0.06


def test_a_reserve_that_runs_low_is_counted_once_and_stretches_the_pace() -> None:
    reader = Reader()
    end = reader.feed(0.025, 300)
    before = reader.paces[-1]
    reader.feed(0.025, 20, start=end + 0.38)
    assert reader.pacer.triggers[LOW_RESERVE] == 1
    assert max(reader.paces[-20:]) > before * 1.1


def test_streams_teach_the_next_one_down_to_a_floor_and_a_stall_is_remembered() -> None:
    prior = SourcePrior()
    for _ in range(60):
        reader = Reader(prior=prior)
        reader.feed(0.025, 50)
        prior.learn(reader.pacer.source)
    assert prior.gap_s == pytest.approx(0.025, rel=0.02)
    assert prior.lateness_s == pytest.approx(0.12)
    reader = Reader(prior=prior)
    end = reader.feed(0.025, 50)
    reader.feed(0.025, 2, start=end + 0.3)
    prior.learn(reader.pacer.source)
    assert 0.25 < prior.lateness_s <= LATENESS_PRIOR_S


def test_a_bucket_slews_the_pace_to_its_fill_rate() -> None:
    ceiling = RateCeiling(capacity=50, fill_rate=30, fastest_hz=50)
    reader = Reader([ceiling])
    reader.feed(0.02, 600)
    assert reader.paces[-1] == pytest.approx(1 / 30, rel=0.03)
    for earlier, later in pairwise(reader.paces):
        assert abs(later / earlier - 1) <= SETTINGS.slew + 1e-9


def test_congestion_slows_down_packs_tokens_together_and_passes() -> None:
    congestion = Congestion()
    congestion.note(NetworkState(rtt_ms=20.0), 0.0)
    reader = Reader(congestion=congestion)
    end = reader.feed(0.025, 200)
    before = reader.pacer.pace_s
    congestion.note(NetworkState(rtt_ms=120.0), end)
    end = reader.feed(0.025, 120, start=end)
    assert reader.pacer.pace_s > before * 1.2
    assert reader.departures[-1].num_texts == SETTINGS.congested_texts
    assert reader.departures[-1].pace_s == pytest.approx(4 * reader.pacer.pace_s)
    congestion.note(NetworkState(rtt_ms=25.0), end)
    reader.feed(0.025, 600, start=end)
    assert reader.departures[-1].num_texts == 1
    assert reader.pacer.pace_s == pytest.approx(0.025, rel=0.1)


def test_paces_and_cap_have_to_rise() -> None:
    with pytest.raises(ValueError, match="must rise"):
        PacerSettings(fastest_s=0.05, slowest_s=0.02)


class CountedPieces(deque[tuple[float, str, int]]):
    """Counts the pieces that are looked at one after the other."""

    num_seen = 0

    def __iter__(self) -> Iterator[tuple[float, str, int]]:
        for piece in super().__iter__():
            self.num_seen += 1
            yield piece


def test_a_source_that_ignores_its_credit_does_not_make_a_token_cost_more() -> None:
    reader = Reader()
    reader.pacer.reserve.pieces = pieces = CountedPieces()
    start = reader.feed(0.03, 40)
    for _ in range(20_000):
        reader.pacer.push("x", start)
    num_seen = []
    while pieces:
        pieces.num_seen = 0
        start += 0.05
        reader.pacer.take(start)
        num_seen.append(pieces.num_seen)
    assert 0 < max(num_seen) <= int(SETTINGS.lag_cap_s / SETTINGS.fastest_s) + 1
