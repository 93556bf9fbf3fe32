from __future__ import annotations

import pytest

from engine.workers.restart import BASE_DELAY_S, MAX_DELAY_S, Restart, RestartPolicy

pytestmark = pytest.mark.unit


def die(policy: RestartPolicy, now: float, *, was_useful: bool = False) -> Restart:
    return policy.note_death(now, was_useful=was_useful, jitter=0.5)


def test_the_delay_doubles_while_workers_are_useless_up_to_a_limit() -> None:
    policy = RestartPolicy(100, 60.0)
    delays = [die(policy, 0.0).delay_s for _ in range(12)]
    assert delays[:3] == [2 * BASE_DELAY_S, 4 * BASE_DELAY_S, 8 * BASE_DELAY_S]
    assert delays[-1] == MAX_DELAY_S


def test_a_worker_that_answered_something_is_replaced_soon() -> None:
    policy = RestartPolicy(100, 60.0)
    for _ in range(8):
        die(policy, 0.0)
    assert die(policy, 0.0, was_useful=True) == Restart(BASE_DELAY_S, False)


def test_jitter_spreads_the_delay() -> None:
    delays = {
        RestartPolicy(9, 60.0).note_death(0.0, was_useful=True, jitter=jitter).delay_s
        for jitter in (0.0, 0.999)
    }
    assert delays == {BASE_DELAY_S * 0.5, BASE_DELAY_S * 1.499}


def test_too_many_deaths_in_the_window_open_the_circuit() -> None:
    policy = RestartPolicy(3, 10.0)
    assert [die(policy, now).is_probe for now in (0.0, 1.0, 2.0, 3.0)] == [False] * 3 + [True]
    assert die(policy, 3.5) == Restart(10.0, True)


def test_workers_that_were_useful_do_not_open_the_circuit() -> None:
    policy = RestartPolicy(3, 10.0)
    assert not any(die(policy, 0.1 * step, was_useful=True).is_probe for step in range(50))
    assert not any(die(policy, 5.0 + 0.1 * step).is_probe for step in range(3))


def test_deaths_outside_the_window_are_forgotten() -> None:
    policy = RestartPolicy(3, 10.0)
    assert not any(die(policy, 4.0 * step).is_probe for step in range(50))
