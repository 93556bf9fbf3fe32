"""What the batch policy promises, in virtual time: the bench's scenarios, shortened."""

from __future__ import annotations

import pytest

from loadtest.batching import scenarios
from loadtest.batching.fixed_size import on_time_with_fixed_size
from loadtest.batching.virtual import WINDOW_S, cpu_like, gpu_like

pytestmark = pytest.mark.property


@pytest.mark.parametrize("per_second", [1000.0, 2000.0])
def test_the_learned_size_is_as_good_as_the_best_fixed_one_under_a_deadline(
    per_second: float,
) -> None:
    learned = scenarios.learned_batch(gpu_like, per_second, seconds=1.5)
    assert learned.ratio >= 0.95, learned


def test_where_company_costs_an_overloaded_device_answers_singly_and_in_time() -> None:
    assert scenarios.settled_size(cpu_like, seconds=2.0) == 1
    assert scenarios.settled_size(cpu_like, seconds=2.0, is_warm=False) == 1
    learned = scenarios.learned_batch(cpu_like, per_second=100.0, seconds=5.0)
    assert learned.best_size == 1
    assert learned.ratio >= 0.95, learned


def test_where_company_pays_it_gives_four_times_the_throughput_and_more() -> None:
    together = scenarios.closed_loop_per_s(gpu_like, clients=64, seconds=0.5)
    alone = scenarios.closed_loop_per_s(gpu_like, clients=64, seconds=0.5, ceiling=1)
    assert together >= 4 * alone


@pytest.mark.parametrize("clients", [1, 4, 8])
def test_few_callers_who_wait_for_their_answers_are_not_kept_waiting_for_others(
    clients: int,
) -> None:
    together = scenarios.closed_loop_per_s(gpu_like, clients, seconds=1.0)
    assert together >= 0.95 * clients / gpu_like(clients)


def test_modest_streams_lose_nothing_beside_a_greedy_one_and_weights_are_kept() -> None:
    fair = scenarios.fairness(seconds=3.0)
    assert fair.lost == 0
    assert fair.greedy_per_s > 20.0
    assert fair.jain >= 0.95


def test_long_deadlines_are_not_starved_by_short_ones() -> None:
    assert scenarios.patient_share(seconds=5.0) == 1.0


def test_no_worker_is_idle_while_work_waits_for_longer_than_a_window() -> None:
    assert scenarios.longest_idle_wait_s(seconds=5.0) <= WINDOW_S + scenarios.IdleWatch.STEP_S


def test_a_cold_start_with_a_backlog_and_a_slow_first_run_sheds_no_storm() -> None:
    assert scenarios.cold_start_share(seconds=4.0) >= 0.9


def test_the_rival_of_fixed_size_is_no_straw_man() -> None:
    arrivals = [number / 5000 for number in range(5000)]  # three times what the device can do
    on_time = on_time_with_fixed_size(arrivals, 64, gpu_like, deadline_s=0.05, window_s=WINDOW_S)
    assert on_time >= 0.95 * 64 / gpu_like(64)
