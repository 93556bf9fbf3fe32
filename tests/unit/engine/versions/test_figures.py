from __future__ import annotations

import math

import pytest

from engine.errors import InternalError
from engine.types import Cancelled, Dropped, DropReason, Failed, Outcome, Result, Timing
from engine.versions.figures import Figures

pytestmark = pytest.mark.unit


def result(run_ms: float = 10.0, queue_ms: float = 0.0, size: int = 1) -> Result:
    timing = Timing(queue=round(queue_ms * 1000), run=round(run_ms * 1000))
    return Result(data=b"{}", model="m", version="1", timing=timing, batch_size=size)


def observe(figures: Figures, *outcomes: Outcome, now: float = 0.0) -> Figures:
    for outcome in outcomes:
        figures.observe(outcome, now)
    return figures


def test_failures_late_answers_and_lost_workers_are_bad_the_rest_is_not() -> None:
    figures = observe(
        Figures(),
        result(),
        Failed(InternalError()),
        Dropped(DropReason.DEADLINE),
        Dropped(DropReason.WORKER_LOST),
        Dropped(DropReason.SUPERSEDED),
        Cancelled(),
    )
    experience = figures.experience()
    assert (experience.answers, experience.bad_share) == (4, 0.75)


def test_run_times_are_medians_by_batch_size_without_the_time_in_the_queue() -> None:
    figures = observe(Figures(), result(10, queue_ms=500), result(20), result(900))
    observe(figures, result(70, size=8))
    assert figures.experience().runs == {1: (3, 0.020), 8: (1, 0.070)}


def test_without_answers_there_is_nothing_to_tell() -> None:
    assert Figures().experience() == (0, 0.0, {})
    assert Figures().queue_age_s(0.0) == 0.0


def test_the_queue_is_as_old_as_what_was_answered_in_the_last_second() -> None:
    figures = observe(Figures(), *[result(queue_ms=100)] * 3, now=10.0)
    assert figures.queue_age_s(10.5) == pytest.approx(0.1)
    assert figures.queue_age_s(11.5) == 0.0


def test_when_most_items_are_given_up_waiting_the_queue_is_too_old_whatever_the_limit() -> None:
    given_up = Dropped(DropReason.SUPERSEDED)
    assert observe(Figures(), result(), given_up, given_up).queue_age_s(0.0) == math.inf
    assert observe(Figures(), result(), result(), given_up).queue_age_s(0.0) == 0.0


def test_old_outcomes_make_room_for_new_ones() -> None:
    figures = observe(Figures(), *[Failed(InternalError())] * 100)
    observe(figures, *[result()] * 512)
    assert figures.experience().bad_share == 0.0
