from __future__ import annotations

from collections.abc import Callable

import pytest

from engine.batching.cost import CostModel

pytestmark = pytest.mark.unit

CPU = {1: 0.042, 2: 0.095, 4: 0.211, 8: 0.470}  # CenterFace, one core: throughput falls
GPU = {1: 0.004, 2: 0.0042, 4: 0.005, 8: 0.0099, 16: 0.0198}  # flat, then proportional


def seeded(shape: dict[int, float]) -> CostModel:
    cost = CostModel()
    cost.seed(shape)
    return cost


def live(cost: CostModel, run_s: Callable[[int], float], bucket: int = 0) -> list[int]:
    """Batches as large as the model wants, until it has settled; returns their sizes."""
    sizes = []
    for _ in range(30):
        sizes.append(cost.best_batch_size(32, bucket))
        cost.observe_run(sizes[-1], run_s(sizes[-1]), bucket)
    return sizes


def test_nothing_measured_predicts_nothing_and_begins_with_one() -> None:
    cost = CostModel()
    assert cost.predict(4) == cost.predict_answer(4) == 0.0
    assert cost.best_batch_size(32) == 1


def test_without_a_warm_up_sizes_are_explored_as_long_as_they_pay() -> None:
    sizes = live(seeded({}), lambda size: 0.005 + 0.0005 * size)
    assert sizes == [size for size in (1, 2, 4, 8, 16, 32) for _ in range(3)] + [32] * 12
    assert set(live(seeded({}), lambda size: 0.020 * size)) == {1, 2}
    assert live(seeded({}), lambda size: 0.020 * size)[-1] == 1


def test_buckets_have_curves_of_their_own() -> None:
    cost = seeded(CPU)
    live(cost, lambda size: 0.005 + 0.0005 * size, bucket=1)
    assert cost.best_batch_size(8, bucket=1) == 8
    assert cost.predict(8, bucket=1) == pytest.approx(0.009)
    assert cost.best_batch_size(8) == 1
    cost.forget(1)
    assert cost.best_batch_size(8, bucket=1) == 1


def test_a_warm_up_that_was_wrong_about_company_is_corrected_by_mixed_batches() -> None:
    cost = seeded({1: 0.005, 2: 0.010, 4: 0.020, 8: 0.040})
    for step in range(200):
        size = (1, 2, 4, 8)[step % 4]
        cost.observe_run(size, 0.005 + 0.0001 * size)
    assert cost.best_batch_size(8) == 8


def test_one_odd_batch_after_the_warm_up_moves_neither_prediction() -> None:
    """A first batch that is a hundred times slower must not make everything look hopeless."""
    cost = seeded(CPU)
    cost.observe_run(1, 100 * CPU[1])
    assert cost.predict(1) == cost.predict_answer(1) == pytest.approx(CPU[1])


def test_nine_in_ten_batches_keep_the_high_prediction() -> None:
    cost = seeded(CPU)
    for number in range(30):
        cost.observe_run(1, CPU[1] * (1.5 if number % 5 == 0 else 1.0))
    assert cost.predict(1) == pytest.approx(CPU[1])
    assert cost.predict_answer(1) == pytest.approx(1.5 * CPU[1])


def test_where_batching_costs_the_best_size_is_one() -> None:
    assert seeded(CPU).best_batch_size(8) == 1


def test_the_best_size_is_the_smallest_with_nearly_the_best_throughput() -> None:
    assert seeded(GPU).best_batch_size(16) == 4
    assert seeded(GPU).best_batch_size(3) == 2


def test_sizes_between_measured_ones_are_interpolated() -> None:
    cost = seeded({2: 0.010, 4: 0.020})
    assert cost.predict(3) == pytest.approx(0.015)
    assert cost.predict(1) == pytest.approx(0.010)  # no less than what is known
    assert cost.predict(8) == pytest.approx(0.040)  # proportional


def test_a_busy_machine_slows_every_size_and_changes_no_verdict() -> None:
    cost = seeded(CPU)
    for _ in range(20):
        cost.observe_run(1, 2 * CPU[1])
    assert cost.predict(8) == pytest.approx(2 * CPU[8])
    assert cost.best_batch_size(8) == 1


def test_one_outlier_moves_no_prediction() -> None:
    cost = seeded(CPU)
    for run_s in [CPU[1]] * 10 + [5.0] + [CPU[1]] * 4:
        cost.observe_run(1, run_s)
    assert cost.predict(1) == pytest.approx(CPU[1])


def test_a_recovered_machine_is_believed_after_a_few_batches() -> None:
    cost = seeded(CPU)
    for run_s in [5.0] * 15 + [CPU[1]] * 8:
        cost.observe_run(1, run_s)
    assert cost.predict(1) == pytest.approx(CPU[1])


def test_live_batches_alone_are_a_shape_too() -> None:
    cost = CostModel()
    cost.observe_run(2, 0.010)
    assert cost.predict(2) == pytest.approx(0.010)
    assert cost.predict(4) == pytest.approx(0.020)


def test_a_run_that_takes_no_time_is_legal() -> None:
    cost = CostModel()
    cost.observe_run(1, 0.0)
    assert cost.predict(1) < 1e-6
    assert seeded({1: 0.0, 2: 0.0}).best_batch_size(2) == 2


def test_an_answer_takes_its_run_and_what_most_answers_took_beyond() -> None:
    cost = seeded({1: 0.030})
    for _ in range(15):
        cost.observe_overhead(0.040)
    assert cost.predict_answer(1) == pytest.approx(0.070)
    cost.observe_overhead(5.0)
    assert cost.predict_answer(1) == pytest.approx(0.070)


def test_an_answer_faster_than_predicted_adds_nothing() -> None:
    cost = seeded({1: 0.030})
    cost.observe_overhead(-0.010)
    assert cost.predict_answer(1) == pytest.approx(0.030)
