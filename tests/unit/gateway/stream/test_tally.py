from __future__ import annotations

import pytest

from engine.types import DropReason
from gateway.stream.tally import Tally

pytestmark = pytest.mark.unit


def test_everything_counts_in_the_parent_as_well() -> None:
    totals = Tally()
    tally = Tally(parent=totals)
    tally.count_refused()
    for _ in range(6):
        tally.count_accepted()
    tally.count_result()
    tally.count_error()
    tally.count_dropped(DropReason.LATE, 2)
    for each in (tally, totals):
        assert (each.received, each.refused, each.accepted) == (7, 1, 6)
        assert (each.results, each.errors, each.num_dropped) == (1, 1, 2)
        assert each.in_flight == 2
        each.check_integrity()


def test_cancelled_frames_are_no_drops() -> None:
    tally = Tally()
    tally.count_accepted()
    tally.count_dropped(DropReason.CANCELLED)
    assert (tally.cancelled, tally.num_dropped, tally.in_flight) == (1, 0, 0)


def test_an_answer_too_many_is_noticed() -> None:
    tally = Tally()
    tally.count_result()
    with pytest.raises(AssertionError):
        tally.check_integrity()
