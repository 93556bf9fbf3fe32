"""How time is shared: tenants, readers with unsent text, guesses."""

from __future__ import annotations

import pytest

from engine.llm.scheduler import SchedulerConfig
from engine.llm.scheduling.fair_share import FairShare
from engine.llm.scheduling.planner import MAX_LEAD_S
from engine.llm.sequence import RELEASE_VALID_S, Sequence
from tests.fakes.llm_simulator import FakeStepCost, Simulator

pytestmark = pytest.mark.unit


def running(sim: Simulator, num_sequences: int, **options: int) -> list[Sequence]:
    sequences = [sim.submit(8, 400, **options) for _ in range(num_sequences)]
    while any(not sequence.output_ids for sequence in sequences):
        sim.step()
    return sequences


def planned_keys(sim: Simulator) -> set[int]:
    plan = sim.step()
    assert plan is not None
    return {item.sequence.key for item in plan.items}


def test_a_tenant_with_one_request_passes_one_with_hundreds() -> None:
    sim = Simulator(SchedulerConfig(max_batch_size=2))
    for _ in range(50):
        sim.submit(30, 20, tenant="greedy")
    sim.run_until(1.0)
    modest = sim.submit(30, 20, tenant="modest")
    sim.run_until(sim.now + 0.5)
    assert modest.admitted_at is not None


def test_time_is_shared_by_weight() -> None:
    sim = Simulator(SchedulerConfig(max_batch_size=4))
    for _ in range(100):
        sim.submit(30, 20, tenant="one", weight=1.0)
        sim.submit(30, 20, tenant="three", weight=3.0)
    sim.run_until(3.0)
    ended = {"one": 0, "three": 0}
    for key, answer in sim.answers.items():
        ended["one" if key % 2 else "three"] += answer.reason == "length"
    assert ended["three"] / ended["one"] == pytest.approx(3.0, rel=0.3)


def test_idleness_saves_no_turns() -> None:
    shares = FairShare()
    shares.join("old")
    shares.charge("old", 1000, 1.0)
    shares.join("new")
    assert shares.virtual_time("new") == 1000
    shares.charge("new", 50, 1.0)
    shares.leave("new")
    shares.join("new")
    assert shares.virtual_time("new") == 1050, "leaving does not forgive either"


def test_the_memory_of_idle_tenants_is_bounded() -> None:
    shares = FairShare()
    for i in range(3000):
        shares.join(str(i))
        shares.leave(str(i))
    assert len(shares._idle) <= 1024
    shares.check_integrity(0)


def test_readers_with_unsent_text_go_without_when_time_is_short() -> None:
    # Ten decodes take 15 ms; the cap allows five.
    sim = Simulator(SchedulerConfig(max_step_ms=10.0, max_batch_size=10))
    sequences = running(sim, 10)
    sim.run_until(sim.now + 0.3)
    lax = sequences[:5]
    for sequence in lax:
        sim.scheduler.set_release(sequence.key, 0, 30.0, sim.now)
    assert planned_keys(sim) == {sequence.key for sequence in sequences[5:]}


def test_nobody_goes_without_who_would_then_have_less_than_a_step() -> None:
    sim = Simulator(SchedulerConfig(max_step_ms=10.0, max_batch_size=10))
    sequences = running(sim, 10)
    sim.run_until(sim.now + 0.3)
    for sequence in sequences:  # one token unsent, at 50 per second: 20 ms, a step takes 15
        sim.scheduler.set_release(sequence.key, len(sequence.output_ids) - 1, 50.0, sim.now)
    assert len(planned_keys(sim)) == 10


def test_laxity_costs_nothing_while_there_is_time() -> None:
    sim = Simulator()
    sequences = running(sim, 4)
    sim.run_until(sim.now + 0.3)
    for sequence in sequences:
        sim.scheduler.set_release(sequence.key, len(sequence.output_ids) - 10, 30.0, sim.now)
    assert len(planned_keys(sim)) == 4


def test_somebody_runs_even_if_everybody_has_unsent_text() -> None:
    sim = Simulator(SchedulerConfig(max_step_ms=1.0), model_cost=FakeStepCost(base=20.0))
    sequences = running(sim, 3)
    sim.run_until(sim.now + 0.3)
    for sequence in sequences:
        sim.scheduler.set_release(sequence.key, len(sequence.output_ids) - 10, 30.0, sim.now)
    assert len(planned_keys(sim)) == 1


def test_nobody_runs_further_ahead_of_its_reader_than_the_lead() -> None:
    sim = Simulator()
    ahead, stalled = running(sim, 2)
    sim.run_until(sim.now + 0.3)
    released = len(ahead.output_ids) - 20
    sim.scheduler.set_release(ahead.key, released, 30.0, sim.now)
    sim.scheduler.set_release(stalled.key, len(stalled.output_ids) - 1, 0.0, sim.now)
    assert sim.step() is None
    sim.now += 20 / 30 - MAX_LEAD_S + 0.01
    assert planned_keys(sim) == {ahead.key}


def test_a_reader_of_whom_nothing_is_heard_any_more_is_served() -> None:
    sim = Simulator()
    [sequence] = running(sim, 1)
    sim.scheduler.set_release(sequence.key, 0, 0.0, sim.now)
    assert sim.step() is None
    sim.now += RELEASE_VALID_S + 0.01
    assert planned_keys(sim) == {sequence.key}


def test_right_guesses_are_many_tokens_in_one_step() -> None:
    sim = Simulator()
    [sequence] = running(sim, 1)
    before = len(sequence.output_ids)
    sim.guess(sequence, 3)
    sim.step()
    assert len(sequence.output_ids) == before + 4
    assert sequence.num_to_compute == 1
    assert sequence.drafts == []


def test_wrong_guesses_are_written_over() -> None:
    sim = Simulator()
    [sequence] = running(sim, 1)
    for _ in range(20):
        sim.guess(sequence, 1, 2)
        plan = sim.step()
        assert plan is not None
        assert plan.items[0].num_drafts == 3
    sim.drain()  # the fake model checks what it attends to
    statistics = sim.scheduler.statistics()
    assert (statistics.drafted, statistics.accepted) == (60, 20)


def test_no_guess_goes_beyond_max_tokens() -> None:
    sim = Simulator()
    sequence = sim.submit(8, 4)
    sim.step()
    sim.guess(sequence, 4)
    plan = sim.step()
    assert plan is not None
    assert plan.items[0].num_drafts == 2
    assert len(sim.answers[sequence.key].tokens) == 4


def test_a_full_batch_verifies_no_guesses() -> None:
    sim = Simulator(SchedulerConfig(speculative_max_batch=2))
    sequences = running(sim, 3)
    for sequence in sequences:
        sim.guess(sequence, 2)
    plan = sim.step()
    assert plan is not None
    assert {item.num_drafts for item in plan.items} == {0}


def test_guesses_do_not_make_a_step_too_long() -> None:
    sim = Simulator(SchedulerConfig(max_step_ms=8.5))
    [sequence] = running(sim, 1)
    sim.guess(sequence, 5)
    plan = sim.step()
    assert plan is not None
    assert plan.items[0].num_drafts == 0


def test_guesses_take_no_block_that_is_not_there() -> None:
    sim = Simulator(num_blocks=6, block_size=4)
    first, second = sim.submit(8, 8), sim.submit(8, 8)
    while min(len(first.output_ids), len(second.output_ids)) < 2:
        sim.step()
    assert sim.pool.num_available == 0
    sim.guess(first, 3)  # four tokens, but its table has two slots left
    plan = sim.step()
    assert plan is not None
    assert {item.num_drafts for item in plan.items} == {0}
    sim.drain()
