"""The step as a transaction, and how sequences join, leave and end."""

from __future__ import annotations

import pytest

from engine.config import LlmConfig
from engine.errors import Overloaded
from engine.llm.scheduler import NeverFits, SchedulerConfig, StepPlan
from engine.llm.sequence import Sequence, SequenceState
from tests.fakes.llm_simulator import Simulator

pytestmark = pytest.mark.unit


def begun(sim: Simulator) -> StepPlan:
    plan = sim.begin()
    assert plan is not None
    return plan


def test_a_prompt_is_prefilled_then_decoded() -> None:
    sim = Simulator(SchedulerConfig(max_chunk_tokens=16))
    sequence = sim.submit(40, 3)
    sizes = []
    while (plan := sim.step()) is not None:
        [item] = plan.items
        sizes.append((item.start, len(item.token_ids), item.samples))
    assert sizes == [(0, 16, False), (16, 16, False), (32, 8, True), (40, 1, True), (41, 1, True)]
    assert sequence.state is SequenceState.FINISHED
    assert sim.pool.num_owned == 0


def test_decodes_and_chunks_share_a_step() -> None:
    sim = Simulator()
    runner = sim.submit(8, 50)
    sim.step()
    newcomer = sim.submit(8, 5)
    plan = begun(sim)
    assert [item.sequence for item in plan.items] == [runner, newcomer]


def test_nothing_to_do_is_no_step() -> None:
    sim = Simulator()
    assert sim.begin() is None
    assert not sim.scheduler.has_work


def test_plan_changes_no_state() -> None:
    sim = Simulator()
    sequence = sim.submit(8)
    begun(sim)
    assert sequence.state is SequenceState.WAITING
    assert sequence.output_ids == []


def test_one_step_at_a_time() -> None:
    sim = Simulator()
    sim.submit(8)
    plan = begun(sim)
    with pytest.raises(ValueError, match="open"):
        sim.scheduler.plan(0.0)
    sim.complete(plan)
    with pytest.raises(ValueError, match="not the open one"):
        sim.scheduler.commit(plan, {}, 0.0)
    with pytest.raises(ValueError, match="not the open one"):
        sim.scheduler.rollback(plan)


@pytest.mark.parametrize("tokens", [[], [1, 2]], ids=["none", "too many"])
def test_wrong_tokens_change_nothing(tokens: list[int]) -> None:
    sim = Simulator()
    sequence = sim.submit(8)
    plan = begun(sim)
    with pytest.raises(ValueError, match="tokens, not 1 to 1"):
        sim.scheduler.commit(plan, {sequence.key: tokens}, 0.1)
    assert sequence.output_ids == []
    sim.complete(plan)
    assert len(sequence.output_ids) == 1


def test_a_rolled_back_step_can_be_planned_again() -> None:
    sim = Simulator()
    sequence = sim.submit(8)
    first = begun(sim)
    sim.fail(first)
    assert (sequence.state, sequence.blocks) == (SequenceState.WAITING, [])
    assert sim.pool.num_owned == 0
    assert begun(sim).items[0].token_ids == first.items[0].token_ids


def test_what_ends_during_its_step_keeps_its_blocks_until_commit() -> None:
    sim = Simulator()
    sequence = sim.submit(8)
    sim.step()
    plan = begun(sim)
    sim.cancel(sequence.key)
    assert sequence.state is SequenceState.ABORTING
    assert sim.pool.num_owned == 1
    assert not sim.scheduler.cancel(sequence.key), "it has ended"
    sim.complete(plan)
    assert sim.pool.num_owned == 0
    assert not sim.scheduler.has_work
    assert len(sequence.output_ids) == 1, "the tokens of that step are nobody's"


def test_what_ends_during_a_step_that_fails_is_gone_too() -> None:
    sim = Simulator()
    keys = [sim.submit(8).key, sim.submit(8).key]
    sim.step()
    sim.cancel(keys[0])
    plan = begun(sim)
    sim.cancel(keys[1])
    sim.fail(plan)
    assert sim.pool.num_owned == 0
    assert not sim.scheduler.has_work


def test_what_the_step_does_not_run_ends_at_once() -> None:
    sim = Simulator(SchedulerConfig(max_batch_size=1))
    sim.submit(8)
    waiting = sim.submit(8)
    plan = begun(sim)
    sim.cancel(waiting.key)
    assert waiting.state is SequenceState.FINISHED
    sim.complete(plan)


def test_unknown_keys_are_ignored() -> None:
    sim = Simulator()
    assert not sim.scheduler.cancel(7)
    assert not sim.scheduler.finish(7)
    sim.scheduler.set_release(7, 0, 30.0, 0.0)
    assert sim.scheduler.get(7) is None


def test_deadlines_end_what_waits_and_what_runs() -> None:
    sim = Simulator(SchedulerConfig(max_batch_size=1))
    runs = sim.submit(8, 500, deadline=0.5)
    waits = sim.submit(8, 5, deadline=0.1)
    patient = sim.submit(8, 5)
    sim.run_until(0.3)
    assert sim.answers[waits.key].reason == "deadline"
    assert waits.admitted_at is None
    assert sim.answers[runs.key].reason == ""
    sim.drain()
    assert sim.answers[runs.key].reason == "deadline"
    ended_at = sim.answers[runs.key].ended_at
    assert ended_at is not None
    assert 0.5 <= ended_at < 0.52
    assert sim.answers[patient.key].reason == "length"


def test_what_has_ended_does_not_expire() -> None:
    sim = Simulator()
    sequence = sim.submit(8, deadline=0.5)
    plan = begun(sim)
    sim.cancel(sequence.key)
    assert sim.scheduler.expire(1.0) == []
    sim.complete(plan)
    assert sim.scheduler.expire(1.0) == []


@pytest.mark.parametrize(
    ("num_prompt", "max_tokens", "fits"),
    [(60, 5, True), (60, 6, False), (64, 1, True), (65, 1, False), (64, None, True)],
)
def test_what_cannot_fit_is_refused_at_once(
    num_prompt: int, max_tokens: int | None, fits: bool
) -> None:
    sim = Simulator(num_blocks=4, block_size=16)
    if fits:
        sim.submit(num_prompt, max_tokens)
        sim.drain()
    else:
        with pytest.raises(NeverFits):
            sim.submit(num_prompt, max_tokens)
    assert not sim.scheduler.has_work


def test_without_max_tokens_an_answer_may_fill_what_there_is() -> None:
    sim = Simulator(SchedulerConfig(max_seq_length=30))
    assert sim.submit(10, None).max_tokens == 20
    with pytest.raises(NeverFits):
        sim.submit(10, 21)


def test_the_queue_is_bounded() -> None:
    sim = Simulator(SchedulerConfig(max_waiting=2))
    sim.submit(8)
    sim.submit(8)
    with pytest.raises(Overloaded) as refusal:
        sim.submit(8)
    assert refusal.value.retry_after_s is not None
    sim.step()
    sim.submit(8)


def test_a_key_is_used_once() -> None:
    sim = Simulator()
    sequence = sim.submit(8)
    with pytest.raises(ValueError, match="not new"):
        sim.scheduler.submit(sequence, 0.0)
    with pytest.raises(ValueError, match="not new"):
        sim.scheduler.submit(Sequence(key=sequence.key, prompt_ids=[1]), 0.0)


def test_a_complete_answer_is_not_computed_further() -> None:
    """Should the caller be late to finish it."""
    sim = Simulator()
    sequence = sim.submit(8, 1)
    plan = begun(sim)
    sim.scheduler.commit(plan, {sequence.key: [3]}, 0.1)
    assert sim.scheduler.plan(0.1) is None
    assert sim.scheduler.finish(sequence.key)
    assert not sim.scheduler.has_work


def test_fewer_rows_after_running_out_of_memory() -> None:
    sim = Simulator()
    for _ in range(5):
        sim.submit(8, 20)
    sim.step()
    served = []
    for _ in range(5):
        plan = sim.begin(max_rows=2)
        assert plan is not None
        served += [item.sequence.key for item in plan.items]
        assert len(plan.items) == 2
        sim.complete(plan)
    assert {served.count(key) for key in sim.answers} == {2}, "everybody has a turn"
    with pytest.raises(ValueError, match="max_rows"):
        sim.scheduler.plan(sim.now, max_rows=0)


def test_statistics_add_up() -> None:
    sim = Simulator(num_blocks=64, block_size=4)
    prompt = list(range(20))
    sim.submit(prompt, 4)
    sim.drain()
    sim.submit(prompt, 4)
    sim.drain()
    statistics = sim.scheduler.statistics()
    assert (statistics.running, statistics.waiting) == (0, 0)
    assert statistics.prompt_tokens == 40
    assert statistics.cached_prompt_tokens == 16
    assert statistics.tokens == 8
    assert statistics.steps == statistics.planned_items == 8
    assert statistics.computed_tokens == 20 + 3 + 4 + 3
    assert statistics.blocks.total == 64
    assert statistics.fragmentation == 0.0


def test_cached_tokens_are_told() -> None:
    sim = Simulator(block_size=4)
    prompt = list(range(20))
    sim.submit(prompt, 2)
    sim.drain()
    again = sim.submit([*prompt, 5], 2)
    sim.drain()
    assert again.num_cached == 20


def test_the_configuration_of_the_engine_carries_over() -> None:
    config = LlmConfig(
        max_batch_size=3, max_step_ms=20.0, min_chunk_tokens=8, zero_copy_fallback=False
    )
    ours = SchedulerConfig.from_llm_config(config, swap_ms_per_block=1.0, max_swapped_blocks=9)
    assert (ours.max_batch_size, ours.idle_step_ms, ours.min_chunk_tokens) == (3, 80.0, 8)
    assert (ours.swap_ms_per_block, ours.max_swapped_blocks) == (0.0, 0)
    swapping = SchedulerConfig.from_llm_config(
        LlmConfig(), swap_ms_per_block=1.0, max_swapped_blocks=9
    )
    assert (swapping.swap_ms_per_block, swapping.max_swapped_blocks) == (1.0, 9)


@pytest.mark.parametrize(
    "wrong",
    [{"max_batch_size": 0}, {"max_step_ms": 0.0}, {"min_chunk_tokens": 600}],
    ids=lambda wrong: next(iter(wrong)),
)
def test_a_wrong_configuration_names_the_option(wrong: dict[str, float]) -> None:
    with pytest.raises(ValueError, match=next(iter(wrong))):
        SchedulerConfig(**wrong)  # type: ignore[arg-type]
