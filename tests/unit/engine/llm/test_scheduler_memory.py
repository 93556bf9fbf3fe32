"""What happens when blocks or slots run out."""

from __future__ import annotations

import pytest

from engine.llm.scheduler import SchedulerConfig
from engine.llm.sequence import Sequence, SequenceState
from tests.fakes.llm_simulator import Simulator

pytestmark = pytest.mark.unit


def filled(sim: Simulator, *, rank: int = 2, num_prompt: int = 30) -> list[Sequence]:
    """Every slot taken by a long answer."""
    sequences = [sim.submit(num_prompt, 300, rank=rank) for _ in range(sim.config.max_batch_size)]
    while any(sequence.state is not SequenceState.RUNNING for sequence in sequences):
        sim.step()
    return sequences


def test_who_came_last_gives_way_when_memory_runs_out() -> None:
    sim = Simulator(num_blocks=10, block_size=4)
    first, second = sim.submit(12, 24), sim.submit(12, 24)
    while second.num_preemptions == 0:
        sim.step()
        sim.check()
    assert second.state is SequenceState.PREEMPTED
    assert first.num_preemptions == 0
    sim.drain()
    assert [len(answer.tokens) for answer in sim.answers.values()] == [24, 24]
    assert sim.scheduler.statistics().preemptions == second.num_preemptions


def test_the_lowest_class_gives_way_first() -> None:
    sim = Simulator(num_blocks=10, block_size=4)
    low, high = sim.submit(12, 24, rank=2), sim.submit(12, 24, rank=0)
    sim.drain()
    assert low.num_preemptions > 0
    assert high.num_preemptions == 0


def test_among_equals_the_largest_laxity_gives_way() -> None:
    sim = Simulator(num_blocks=10, block_size=4)
    lax, tight = sim.submit(12, 24), sim.submit(12, 24)
    while lax.num_preemptions + tight.num_preemptions == 0:
        sim.step()
        sim.scheduler.set_release(lax.key, 0, 1.0, sim.now)
    assert (lax.num_preemptions, tight.num_preemptions) == (1, 0)


def test_preempted_work_keeps_its_place() -> None:
    sim = Simulator(SchedulerConfig(max_batch_size=2), num_blocks=10, block_size=4)
    sim.submit(12, 24)
    victim = sim.submit(12, 24)
    later = sim.submit(12, 24)
    sim.drain()
    ended = {key: answer.ended_at for key, answer in sim.answers.items()}
    assert victim.num_preemptions > 0
    assert ended[victim.key] < ended[later.key]


@pytest.mark.parametrize("max_preemptions", [0, 1, 2])
def test_nobody_gives_way_more_often_than_allowed(max_preemptions: int) -> None:
    config = SchedulerConfig(max_preemptions=max_preemptions)
    sim = Simulator(config, num_blocks=12, block_size=4)
    sequences = [sim.submit(8, 32) for _ in range(8)]
    sim.drain()
    most = max(sequence.num_preemptions for sequence in sequences)
    assert most == max_preemptions
    assert all(len(answer.tokens) == 32 for answer in sim.answers.values())


def test_many_more_run_than_a_full_reservation_would_allow() -> None:
    block_size, max_seq_length = 16, 2048
    config = SchedulerConfig(max_batch_size=64, max_seq_length=max_seq_length)
    num_reserved = 4
    sim = Simulator(
        config, num_blocks=num_reserved * max_seq_length // block_size, block_size=block_size
    )
    for i in range(40):
        sim.submit(100 + i, 100)
    most = 0
    while sim.scheduler.has_work:
        sim.step()
        statistics = sim.scheduler.statistics()
        most = max(most, statistics.running)
        if statistics.running > 3:
            assert statistics.fragmentation < 0.1
    assert most >= 3 * num_reserved
    assert {answer.reason for answer in sim.answers.values()} == {"length"}


@pytest.mark.parametrize(("max_tokens", "starts"), [(2, True), (3, False)])
def test_newcomers_leave_room_for_those_who_grow(max_tokens: int, starts: bool) -> None:
    """Otherwise somebody would be preempted a moment after the last one started."""
    sim = Simulator(num_blocks=10, block_size=4)
    for _ in range(2):
        sim.submit(15, max_tokens)  # with two tokens to say, four blocks are enough
    sim.step()
    late = sim.submit(4, 1)
    sim.step()
    assert (late.admitted_at is not None) == starts
    sim.drain()
    assert sim.scheduler.statistics().preemptions == 0


def test_newcomers_of_one_step_leave_room_for_each_other() -> None:
    sim = Simulator(num_blocks=10, block_size=4)
    for _ in range(3):
        sim.submit(12, 8)  # three blocks now; a fourth, which each will need, makes twelve
    sim.step()
    assert sim.scheduler.statistics().running == 2


def test_an_urgent_request_takes_the_place_of_a_lower_class() -> None:
    sim = Simulator(SchedulerConfig(max_batch_size=4))
    low = filled(sim)
    urgent = sim.submit(30, 4, rank=0)
    sim.step()
    assert urgent.admitted_at == pytest.approx(sim.plans[-1].planned_at)
    assert sum(sequence.num_preemptions for sequence in low) == 1
    assert low[-1].state is SequenceState.PREEMPTED


def test_a_place_that_was_made_goes_to_whom_it_was_made_for() -> None:
    sim = Simulator(SchedulerConfig(max_batch_size=2, max_wait_ms=100.0))
    filled(sim)
    aged = sim.submit(30, 4, rank=2)
    sim.run_until(sim.now + 0.2)  # the next free place would be its
    urgent = sim.submit(30, 4, rank=0)
    sim.step()
    assert urgent.admitted_at is not None
    assert aged.admitted_at is None


def test_an_urgent_request_takes_blocks_of_a_lower_class() -> None:
    sim = Simulator(SchedulerConfig(preempt_ratio=1.0), num_blocks=20, block_size=4)
    low = [sim.submit(28, 12, rank=2) for _ in range(2)]
    sim.step()
    urgent = sim.submit(40, 4, rank=0)
    sim.step()
    assert urgent.admitted_at is not None
    assert [sequence.num_preemptions for sequence in low] == [0, 1]
    sim.drain()


def test_nobody_gives_way_in_vain() -> None:
    """All lower classes together would not make room."""
    sim = Simulator(SchedulerConfig(preempt_ratio=1.0), num_blocks=20, block_size=4)
    low = sim.submit(8, 40, rank=2)
    sim.submit(30, 20, rank=0)
    sim.step()
    sim.submit(50, 4, rank=0)
    for _ in range(5):
        sim.step()
    assert low.num_preemptions == 0


def test_equals_and_the_aged_take_free_places_only() -> None:
    sim = Simulator(SchedulerConfig(max_batch_size=2, max_wait_ms=100.0))
    running = filled(sim, rank=1)
    sim.submit(8, 1, rank=1)
    sim.submit(8, 1, rank=2)
    sim.run_until(sim.now + 1.0)
    assert [sequence.num_preemptions for sequence in running] == [0, 0]


@pytest.mark.parametrize(("preempt_ratio", "most"), [(0.0, 0), (0.1, 1), (0.3, 2), (1.0, 4)])
def test_upheaval_is_bounded_per_interval(preempt_ratio: float, most: int) -> None:
    config = SchedulerConfig(
        max_batch_size=8, preempt_ratio=preempt_ratio, scheduler_interval=50.0, idle_step_ms=20.0
    )
    sim = Simulator(config)
    filled(sim)
    for _ in range(16):
        sim.submit(4, 300, rank=0)
    began_at = sim.now
    # Steps take 13 ms: four begin within the interval, and each preempts for one at most.
    while sim.now - began_at < 0.05:
        sim.step()
    assert sim.scheduler.statistics().preemptions == most


def swapping(swap_ms_per_block: float, max_swapped_blocks: int = 100) -> SchedulerConfig:
    return SchedulerConfig(
        swap_ms_per_block=swap_ms_per_block, max_swapped_blocks=max_swapped_blocks
    )


def test_work_is_kept_in_host_memory_where_copying_is_cheaper() -> None:
    sim = Simulator(swapping(0.001), num_blocks=10, block_size=4)
    sim.submit(12, 24)
    victim = sim.submit(12, 24)
    while victim.num_swapped == 0:
        sim.step()
    computed = victim.num_swapped
    [move] = [move for plan in sim.plans for move in plan.swap_out]
    assert (move.key, len(move.blocks)) == (victim.key, -(-computed // 4))
    while not (back := [move for plan in sim.plans for move in plan.swap_in]):
        sim.step()
    assert back[0].key == victim.key
    [item] = [i for i in sim.plans[-1].items if i.sequence is victim]
    assert (item.start, len(item.token_ids)) == (computed, 1), "nothing is computed again"
    again = Sequence(key=0, prompt_ids=victim.prompt_ids, max_tokens=1)
    assert len(sim.pool.match_prefix(again)) == 2, "what was swapped in is known again"
    sim.drain()
    assert sim.scheduler.statistics().swaps == victim.num_preemptions


@pytest.mark.parametrize(
    "config", [swapping(100.0), swapping(0.001, 2), swapping(0.001, 0)], ids=["slow", "full", "off"]
)
def test_otherwise_work_is_computed_again(config: SchedulerConfig) -> None:
    sim = Simulator(config, num_blocks=10, block_size=4)
    sim.submit(12, 24)
    sim.submit(12, 24)
    sim.drain()
    statistics = sim.scheduler.statistics()
    assert statistics.preemptions > 0
    assert statistics.swaps == 0


def test_a_swap_that_was_rolled_back_is_void() -> None:
    sim = Simulator(swapping(0.001), num_blocks=10, block_size=4)
    sim.submit(12, 24)
    victim = sim.submit(12, 24)
    while True:
        plan = sim.begin()
        assert plan is not None
        if plan.swap_out:
            break
        sim.complete(plan)
    sim.fail(plan)
    assert victim.state is SequenceState.PREEMPTED
    assert victim.num_swapped == 0
    sim.drain()
