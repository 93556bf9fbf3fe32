from __future__ import annotations

from itertools import pairwise

import pytest

from gateway.stream.service_level import (
    DOWN_AFTER_S,
    RELIEVES_AFTER_S,
    UP_AFTER_S,
    Level,
    ServiceLevel,
    Signals,
)

pytestmark = pytest.mark.unit

TICK_S = 0.25


def run(service: ServiceLevel, signals: Signals, seconds: float, now: float = 0.0) -> list[Level]:
    return [
        service.update(signals, now + step * TICK_S) for step in range(1, int(seconds / TICK_S) + 1)
    ]


def test_pressure_goes_up_one_step_at_a_time_and_no_further_than_the_last() -> None:
    levels = run(ServiceLevel(0.0), Signals(loop=1.5), 20)
    assert levels[-1] is Level.SHED_STANDARD
    assert all(b - a in (0, 1) for a, b in pairwise(levels))
    first = levels.index(Level.NO_EXTRAS)
    assert (first + 1) * TICK_S == pytest.approx(UP_AFTER_S + TICK_S)


def test_a_level_that_relieves_has_time_to_before_the_next_step() -> None:
    levels = run(ServiceLevel(0.0), Signals(loop=1.5), 20)
    starts = [levels.index(level) * TICK_S for level in list(Level)[1:]]
    spent = dict(zip(list(Level)[1:], (b - a for a, b in pairwise(starts)), strict=False))
    assert spent == {
        Level.NO_EXTRAS: UP_AFTER_S,
        Level.LESS_INPUT: RELIEVES_AFTER_S,
        Level.CHEAPER_MODEL: RELIEVES_AFTER_S,
        Level.SHED_BACKGROUND: UP_AFTER_S,
    }


def test_load_that_falls_before_the_relief_is_over_sheds_nobody() -> None:
    service = ServiceLevel(0.0)
    run(service, Signals(prompts=2.0), 5.5)
    assert service.level is Level.CHEAPER_MODEL
    run(service, Signals(prompts=2.0), RELIEVES_AFTER_S - 0.5, now=5.5)
    assert set(run(service, Signals(prompts=0.8), 60, now=8.0)) == {Level.CHEAPER_MODEL}


def test_a_short_burst_changes_nothing() -> None:
    service = ServiceLevel(0.0)
    run(service, Signals(outbox=5.0), UP_AFTER_S)
    assert set(run(service, Signals(), 10, now=UP_AFTER_S)) == {Level.NORMAL}


def test_the_level_stays_between_the_limits() -> None:
    service = ServiceLevel(0.0)
    run(service, Signals(loop=1.0), 2.5)
    level = service.level
    assert level > Level.NORMAL
    assert set(run(service, Signals(loop=0.85), 60, now=2.5)) == {level}


def test_the_level_falls_more_slowly_than_it_rises() -> None:
    service = ServiceLevel(0.0)
    run(service, Signals(loop=2.0), 20)
    levels = run(service, Signals(), 60, now=20.0)
    assert levels[-1] is Level.NORMAL
    steps = [n for n, (a, b) in enumerate(pairwise(levels)) if a is not b]
    waits = [(b - a) * TICK_S for a, b in pairwise(steps)]
    assert waits == [DOWN_AFTER_S] * 4


def test_a_class_is_not_shed_for_its_own_sake() -> None:
    assert run(ServiceLevel(0.0), Signals(standard=9.0, prompts=9.0), 60)[-1] is (
        Level.SHED_BACKGROUND
    )
    assert run(ServiceLevel(0.0), Signals(realtime=1.1), 60)[-1] is Level.SHED_STANDARD


def test_the_cause_is_the_signal_nearest_to_its_limit() -> None:
    signals = Signals(realtime=0.2, standard=0.9, outbox=0.5)
    assert signals.cause(Level.NO_EXTRAS) == "standard"
    assert signals.cause(Level.SHED_STANDARD) == "outbox"
    assert signals.load(Level.SHED_STANDARD) == 0.5


def test_time_is_counted_at_the_level_at_which_it_passed() -> None:
    service = ServiceLevel(0.0)
    run(service, Signals(loop=2.0), 3.0)
    assert sum(service.seconds.values()) == pytest.approx(3.0)
    assert service.seconds[Level.NORMAL] == pytest.approx(1.25)
    assert [level.label for level in Level][-1] == "shed_standard"
