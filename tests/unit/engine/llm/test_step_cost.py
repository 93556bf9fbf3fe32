"""The step-cost model learns the machine it runs on."""

from __future__ import annotations

import random

import pytest

from engine.llm.sequence import Sequence
from engine.llm.step_cost import StepCost, StepShape

pytestmark = pytest.mark.unit


def true_ms(shape: StepShape) -> float:
    return (
        4.0
        + 0.8 * shape.num_decodes
        + 0.3 * shape.num_prefill_tokens
        + 2e-3 * shape.decode_context
        + 2e-4 * shape.prefill_context
    )


def random_shape(source: random.Random) -> StepShape:
    shape = StepShape()
    for _ in range(source.randint(0, 16)):
        shape = shape.with_decode(source.randint(1, 2000))
    for _ in range(source.randint(0, 2)):
        shape = shape.with_chunk(source.randint(0, 2000), source.randint(1, 100))
    return shape


def taught(num_steps: int = 300, noise: float = 0.1, seed: int = 1) -> StepCost:
    source = random.Random(seed)
    cost = StepCost()
    for _ in range(num_steps):
        shape = random_shape(source)
        cost.observe(shape, true_ms(shape) * source.uniform(1 - noise, 1 + noise))
    return cost


def worst_error(cost: StepCost) -> float:
    source = random.Random(99)
    shapes = [random_shape(source) for _ in range(200)]
    return max(abs(cost.predict(shape) / true_ms(shape) - 1) for shape in shapes)


def test_it_says_nothing_before_it_saw_something() -> None:
    cost = StepCost()
    assert cost.predict(StepShape(num_decodes=4)) == 0.0
    chunk = cost.affordable_chunk(StepShape(), start=0, limit=512, budget_ms=50.0)
    assert chunk == 0


def test_it_learns_mixed_steps() -> None:
    assert worst_error(taught()) < 0.15


def test_it_learns_within_a_few_steps() -> None:
    assert worst_error(taught(num_steps=40, noise=0.02)) < 0.25


def test_outliers_do_not_move_it() -> None:
    cost = taught()
    source = random.Random(3)
    for i in range(200):
        shape = random_shape(source)
        cost.observe(shape, true_ms(shape) * (30.0 if i % 20 == 0 else 1.0))
    assert worst_error(cost) < 0.35


def test_a_long_monotony_forgets_nothing() -> None:
    cost = taught()
    for context in range(2000):
        shape = StepShape(num_decodes=4, decode_context=4 * context)
        cost.observe(shape, true_ms(shape))
    assert worst_error(cost) < 0.2


def test_load_raises_every_prediction_soon() -> None:
    cost = taught()
    seen = StepShape(num_decodes=4, decode_context=400)
    other = StepShape().with_chunk(0, 64)
    before = cost.predict(other)
    for _ in range(8):
        cost.observe(seen, 2 * true_ms(seen))
    assert cost.predict(other) > 1.5 * before


def test_the_affordable_chunk_is_the_largest_within_the_budget() -> None:
    cost = taught()
    decodes = StepShape(num_decodes=8, decode_context=4000)
    chunk = cost.affordable_chunk(decodes, start=500, limit=512, budget_ms=40.0)
    assert cost.predict(decodes.with_chunk(500, chunk)) <= 40.0
    assert cost.predict(decodes.with_chunk(500, chunk + 1)) > 40.0


def test_a_chunk_costs_more_behind_a_long_context() -> None:
    cost = taught()
    near = cost.affordable_chunk(StepShape(), start=0, limit=512, budget_ms=30.0)
    far = cost.affordable_chunk(StepShape(), start=4000, limit=512, budget_ms=30.0)
    assert far < near


def test_no_chunk_fits_a_budget_that_is_spent() -> None:
    decodes = StepShape(num_decodes=8, decode_context=4000)
    assert taught().affordable_chunk(decodes, start=0, limit=512, budget_ms=5.0) == 0


def test_prefill_grows_by_doubling_only() -> None:
    cost = StepCost()
    cost.observe(StepShape().with_chunk(0, 16), 5.0)
    assert cost.affordable_chunk(StepShape(), start=0, limit=512, budget_ms=1e9) == 32
    begun = StepShape().with_chunk(0, 20)
    assert cost.affordable_chunk(begun, start=0, limit=512, budget_ms=1e9) == 12


@pytest.mark.parametrize("step_ms", [0.0, -1.0])
def test_what_is_not_positive_is_ignored(step_ms: float) -> None:
    cost = StepCost()
    cost.observe(StepShape(num_decodes=1), step_ms)
    assert cost.predict(StepShape(num_decodes=1)) == 0.0


def test_memory_is_bounded() -> None:
    cost = StepCost()
    for i in range(400):
        shape = StepShape(num_decodes=1 << (i % 20), prefill_context=1 << (i // 20))
        cost.observe(shape, 1.0)
    assert len(cost._usual._cells) <= 256


def test_steps_with_cheaper_weights_are_learned_apart() -> None:
    cost, shape = StepCost(), StepShape(num_decodes=4)
    cost.observe(shape, 40.0)
    cost.use_cheaper(True)
    assert cost.predict(shape) == 0.0
    cost.observe(shape, 10.0)
    assert cost.predict(shape) == pytest.approx(10.0, rel=0.01)
    cost.use_cheaper(False)
    assert cost.predict(shape) == pytest.approx(40.0, rel=0.01)


def test_shapes_add_up() -> None:
    sequences = [Sequence(key=i, prompt_ids=[0] * 10) for i in range(3)]
    shape = StepShape.of_decodes(sequences)
    assert shape == StepShape(num_decodes=3, decode_context=30)
    assert shape.with_decode(10, 2) == StepShape(num_decodes=5, decode_context=50)
    # Rows 5, 6 and 7 see 6, 7 and 8 tokens.
    chunk = StepShape().with_chunk(5, 3)
    assert chunk == StepShape(num_prefill_tokens=3, prefill_context=21)
