from __future__ import annotations

import logging
import math

import pytest

from gateway.session.clock import EARLY_S, TICKS_PER_S, Clock
from tests.fakes.virtual_loop import VirtualLoop

pytestmark = pytest.mark.unit


def test_timers_run_at_their_own_time_in_order() -> None:
    loop = VirtualLoop(0.0)
    clock = Clock(loop)
    ran: list[tuple[str, float]] = []
    for name, when in (("late", 3.0), ("early", 1.0), ("also early", 1.0)):
        clock.call_at(when, lambda name=name: ran.append((name, clock.now())))
    loop.advance(5.0)
    assert ran == [("early", 1.0), ("also early", 1.0), ("late", 3.0)]
    assert len(clock) == 0


def test_the_loop_has_one_timer_however_many_there_are() -> None:
    loop = VirtualLoop(0.0)
    clock = Clock(loop)
    for step in range(100):
        clock.call_at(100.0 - step, lambda: None)
    assert loop.num_armed == 1
    loop.advance(200.0)
    assert loop.num_armed == 0


def test_a_cancelled_timer_does_not_run_and_may_be_cancelled_again() -> None:
    loop = VirtualLoop(0.0)
    clock = Clock(loop)
    ran: list[int] = []
    timer = clock.call_at(1.0, lambda: ran.append(1))
    timer.cancel()
    timer.cancel()
    assert len(clock) == 0
    loop.advance(2.0)
    assert ran == []


def test_cancelled_timers_do_not_pile_up() -> None:
    clock = Clock(VirtualLoop(0.0))
    kept = [clock.call_at(1e9, lambda: None) for _ in range(10)]
    for step in range(10_000):
        clock.call_at(1000.0 + step, lambda: None).cancel()
    assert len(clock) == len(kept)
    assert len(clock._ticks) < 200


def test_timers_run_within_a_tick_after_their_time_and_never_before() -> None:
    loop = VirtualLoop(1000.0)
    clock = Clock(loop)
    late_s: list[float] = []
    for step in range(500):
        when = 1000.0 + step * 0.00137
        clock.call_at(when, lambda when=when: late_s.append(clock.now() - when))
    loop.advance(1.0)
    assert len(late_s) == 500
    assert min(late_s) >= -EARLY_S
    assert max(late_s) <= 1 / TICKS_PER_S


@pytest.mark.parametrize("milliseconds", [1, 49, 50, 178, 999, 53_024_178])
def test_a_time_of_whole_ticks_is_kept_whatever_rounding_makes_of_it(milliseconds: int) -> None:
    loop = VirtualLoop(0.0)
    clock = Clock(loop)
    ran: list[float] = []
    when = milliseconds / 1000
    for near in (when, math.nextafter(when, 0.0), math.nextafter(when, math.inf)):
        clock.call_at(near, lambda: ran.append(clock.now()))
    loop.advance(when + 1.0)
    assert ran == [when] * 3


def test_a_timer_that_closes_the_clock_is_the_last_to_run() -> None:
    loop = VirtualLoop(0.0)
    clock = Clock(loop)
    clock.call_at(1.0, clock.aclose)
    clock.call_at(1.0, lambda: pytest.fail("ran"))
    loop.advance(2.0)
    assert (len(clock), loop.num_armed) == (0, 0)


def test_a_timer_may_cancel_one_that_is_due_with_it() -> None:
    loop = VirtualLoop(0.0)
    clock = Clock(loop)
    ran: list[int] = []
    clock.call_at(1.0, lambda: second.cancel())
    second = clock.call_at(1.0, lambda: ran.append(2))
    loop.advance(2.0)
    assert ran == []
    assert len(clock) == 0


def test_a_timer_that_arms_itself_for_now_lets_the_others_run() -> None:
    loop = VirtualLoop(0.0)
    clock = Clock(loop)
    turns: list[str] = []

    def again() -> None:
        turns.append("again")
        if len(turns) < 6:
            clock.call_at(clock.now(), again)

    clock.call_at(1.0, again)
    clock.call_at(1.0, lambda: turns.append("other"))
    loop.advance(1.0)
    assert turns[:3] == ["again", "other", "again"]


def test_a_timer_that_raises_is_logged_and_stops_no_other(
    caplog: pytest.LogCaptureFixture,
) -> None:
    loop = VirtualLoop(0.0)
    clock = Clock(loop)
    ran: list[int] = []

    def fail() -> None:
        raise RuntimeError("broken timer")

    clock.call_at(1.0, fail)
    clock.call_at(1.0, lambda: ran.append(1))
    with caplog.at_level(logging.ERROR):
        loop.advance(1.0)
    assert ran == [1]
    assert "broken timer" in caplog.text


def test_closing_cancels_everything() -> None:
    loop = VirtualLoop(0.0)
    clock = Clock(loop)
    timer = clock.call_at(1.0, lambda: pytest.fail("ran"))
    clock.aclose()
    clock.aclose()
    timer.cancel()
    assert (len(clock), loop.num_armed) == (0, 0)
    loop.advance(2.0)
