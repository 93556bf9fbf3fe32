"""The number of workers over virtual time, against a queue that reacts as a real one does."""

from __future__ import annotations

from itertools import pairwise

import pytest

from engine.workers.scaling import ScaleDecider

pytestmark = pytest.mark.unit

TICK_S = 0.25


def make_decider(min_workers: int = 1, max_workers: int = 4) -> ScaleDecider:
    return ScaleDecider(min_workers=min_workers, max_workers=max_workers, grow_age_s=0.05)


def run(
    decider: ScaleDecider,
    load: float,
    seconds: float,
    workers: int,
    began: float = 0.0,
) -> list[int]:
    """The number at each tick; ``load`` in workers. More than there are lets the queue age."""
    numbers = []
    for tick in range(round(seconds / TICK_S)):
        queue_age_s = 0.5 if load > workers else 0.001
        workers = decider.decide(
            began + tick * TICK_S,
            workers=workers,
            queue_age_s=queue_age_s,
            busy_share=min(1.0, load / workers),
        )
        numbers.append(workers)
    return numbers


def test_an_old_queue_brings_workers_one_by_one_until_they_are_enough() -> None:
    numbers = run(make_decider(), load=2.5, seconds=20.0, workers=1)
    assert numbers[-1] == 3
    assert all(after - before in (0, 1) for before, after in pairwise(numbers))
    assert numbers.index(2) * TICK_S >= 1.0
    assert (numbers.index(3) - numbers.index(2)) * TICK_S >= 3.0


def test_a_short_burst_brings_no_worker() -> None:
    decider = make_decider()
    assert run(decider, load=5.0, seconds=0.75, workers=1)[-1] == 1
    assert run(decider, load=0.5, seconds=5.0, workers=1, began=0.75)[-1] == 1


def test_there_are_never_more_than_max_workers() -> None:
    assert max(run(make_decider(max_workers=2), load=9.0, seconds=60.0, workers=1)) == 2


def test_idle_workers_leave_after_half_a_minute_each_down_to_min_workers() -> None:
    numbers = run(make_decider(min_workers=2), load=0.1, seconds=120.0, workers=4)
    assert numbers.index(3) * TICK_S >= 30.0
    assert (numbers.index(2) - numbers.index(3)) * TICK_S >= 30.0
    assert numbers[-1] == 2


def test_a_load_that_one_worker_fewer_could_not_carry_keeps_them_all() -> None:
    assert run(make_decider(), load=0.8, seconds=300.0, workers=2)[-1] == 2


def test_a_steady_load_settles_on_one_number() -> None:
    for load in (0.3, 0.9, 1.1, 1.9, 2.2, 3.7):
        numbers = run(make_decider(), load=load, seconds=600.0, workers=1)
        assert len(set(numbers[400:])) == 1, f"load {load} swings between {set(numbers[400:])}"


def test_fewer_than_min_workers_are_made_up_for_at_once() -> None:
    decider = make_decider(min_workers=2)
    assert decider.decide(0.0, workers=1, queue_age_s=0.0, busy_share=0.0) == 2
