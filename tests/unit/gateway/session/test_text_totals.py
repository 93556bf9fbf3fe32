from __future__ import annotations

from itertools import pairwise

import pytest

from gateway.session.histogram import FIRST_TOKEN_BOUNDS_S, GAP_BOUNDS_S
from gateway.session.text_totals import MAX_REASONS, TextTotals

pytestmark = pytest.mark.unit


class Now:
    """A clock that tests set."""

    def __init__(self) -> None:
        self.s = 100.0

    def __call__(self) -> float:
        return self.s


def test_the_first_visible_token_and_then_gaps_are_timed() -> None:
    now = Now()
    totals = TextTotals(now)
    timer = totals.start()
    for wait_s, text in ((0.1, ""), (0.12, "a"), (0.021, "b"), (0.02, ""), (0.035, "c")):
        now.s += wait_s
        timer.token(text)
    assert totals.tokens == 5
    assert totals.first_token.counts[FIRST_TOKEN_BOUNDS_S.index(0.3)] == 1
    assert totals.gaps.counts[GAP_BOUNDS_S.index(0.022)] == 1
    assert totals.gaps.counts[GAP_BOUNDS_S.index(0.06)] == 1
    assert totals.gaps.sum == pytest.approx(0.076)


def test_buckets_are_fine_where_a_pace_is_told_from_another() -> None:
    between = [bound for bound in GAP_BOUNDS_S if 0.018 <= bound <= 0.06]
    assert max(later - sooner for sooner, later in pairwise(between)) <= 0.01


def test_endings_are_counted_by_reason_and_bounded() -> None:
    totals = TextTotals(Now())
    for number in range(2 * MAX_REASONS):
        totals.start().end(f"reason {number}")
    totals.start().end("reason 0")
    assert totals.endings["reason 0"] == 2
    assert totals.endings["other"] == MAX_REASONS
    assert len(totals.endings) == MAX_REASONS + 1
