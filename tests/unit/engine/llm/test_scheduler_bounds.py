"""What the scheduler promises about time, in virtual time with a step cost that is known."""

from __future__ import annotations

import statistics
from itertools import pairwise

import pytest

from engine.errors import Overloaded
from engine.llm.scheduler import NeverFits, SchedulerConfig, StepShape
from engine.llm.sequence import Sequence
from tests.fakes.llm_simulator import FakeStepCost, Simulator

pytestmark = pytest.mark.unit

FAST = FakeStepCost()
# Decoding alone takes longer than ``max_step_ms``.
SLOW = FakeStepCost(base=20.0, per_decode=12.0, per_prefill_token=1.0, per_context_token=0.0)


def started_after_s(sequence: Sequence) -> float:
    assert sequence.admitted_at is not None
    return sequence.admitted_at - sequence.arrived_at


def saturate(
    sim: Simulator,
    *,
    until: float,
    every_s: float,
    rank: int = 0,
    num_prompt: int = 32,
    max_tokens: int = 32,
) -> None:
    """Offer requests at a fixed rate; those that find the queue full go away."""
    next_at = sim.now
    while sim.now < until:
        while next_at <= sim.now:
            try:
                sim.submit(num_prompt, max_tokens, rank=rank, arrived_at=next_at)
            except Overloaded:
                pass  # as a caller would be told
            next_at += every_s
        if sim.step() is None:
            sim.now = min(next_at, until)


def service_s(config: SchedulerConfig) -> float:
    """Seconds per request at full load."""
    sim = Simulator(config)
    for _ in range(60):
        sim.submit(32, 32, rank=0)
    sim.drain()
    return sim.now / 60


@pytest.mark.parametrize("model_cost", [FAST, SLOW], ids=["fast", "slow"])
@pytest.mark.parametrize("num_prompt", [512, 3000])
def test_a_long_prompt_does_not_stall_running_streams(
    model_cost: FakeStepCost, num_prompt: int
) -> None:
    config = SchedulerConfig()
    sim = Simulator(config, model_cost=model_cost)
    victims = [sim.submit(num_prompt // 16, 300) for _ in range(4)]
    while any(len(sim.answers[victim.key].tokens) < 20 for victim in victims):
        sim.step()
    attack = sim.submit(num_prompt, 4)
    attacked_at = sim.now
    sim.drain()

    decode = StepShape(num_decodes=4, decode_context=4 * (num_prompt // 16 + 300))
    decode_ms = model_cost.step_ms(decode)
    chunk_ms = model_cost.per_prefill_token * config.min_chunk_tokens
    bound_s = (max(config.max_step_ms, decode_ms + chunk_ms) + decode_ms) / 1000
    assert max(max(sim.answers[victim.key].gaps_s) for victim in victims) <= bound_s
    assert started_after_s(attack) <= bound_s
    # The attack makes progress all the time: at least the smallest chunk per step.
    num_steps = -(-num_prompt // config.min_chunk_tokens) + 2
    assert sim.answers[attack.key].token_times[0] - attacked_at <= num_steps * bound_s


def test_short_prompts_that_keep_coming_stall_nobody() -> None:
    sim = Simulator(SchedulerConfig())
    victims = [sim.submit(20, 400) for _ in range(3)]
    sim.run_until(0.5)
    for i in range(30):
        sim.run_until(0.5 + i * 0.2)
        sim.submit(60, 4)
    sim.drain()
    assert max(max(sim.answers[victim.key].gaps_s) for victim in victims) <= 0.051


def test_a_prompt_starts_beside_endless_decoders() -> None:
    config = SchedulerConfig(max_batch_size=8, max_step_ms=5.0)  # decoding alone takes longer
    sim = Simulator(config)
    for _ in range(7):
        sim.submit(10, 2000)
    sim.run_until(1.0)
    late = sim.submit(160, 1)
    for _ in range(160 // config.min_chunk_tokens):
        assert not sim.answers[late.key].tokens
        sim.step()
    assert len(sim.answers[late.key].tokens) == 1


def test_a_short_prompt_overtakes_a_long_prefill_however_old() -> None:
    config = SchedulerConfig(max_seq_length=20_000, max_wait_ms=3000.0)
    sim = Simulator(config, num_blocks=2048)
    long = sim.submit(16_000, 4)
    sim.run_until(6.0)
    short = sim.submit(100, 1)
    sim.run_until(7.0)
    assert not sim.answers[long.key].tokens
    [first_token_at] = sim.answers[short.key].token_times
    # The step that ran, perhaps one that is the old prompt's turn, and its own.
    assert first_token_at - short.arrived_at <= 3 * sim.config.idle_step_ms / 1000


def test_who_waited_long_for_what_it_asks_goes_first() -> None:
    sim = Simulator(SchedulerConfig(max_batch_size=1))
    sim.submit(10, 250)
    old = sim.submit(200, 1)
    sim.run_until(1.0)
    small = sim.submit(100, 1)
    sim.drain()
    assert old.admitted_at is not None
    assert small.admitted_at is not None
    assert old.admitted_at < small.admitted_at


def test_a_long_prefill_ends_although_short_prompts_keep_coming() -> None:
    sim = Simulator(SchedulerConfig())
    long = sim.submit(4000, 1)
    # They alone would take more than there is.
    every_s = 100 * FAST.per_prefill_token / 1000 / 1.1
    saturate(sim, rank=1, until=40.0, every_s=every_s, num_prompt=100, max_tokens=1)
    assert sim.answers[long.key].reason == "length"


def test_low_priority_starts_within_its_bound_under_overload() -> None:
    config = SchedulerConfig(max_batch_size=4, max_wait_ms=3000.0)
    sim = Simulator(config)
    every_s = service_s(config) / 1.1
    saturate(sim, until=5.0, every_s=every_s)
    assert sim.scheduler.statistics().waiting > 0, "not overloaded"
    background = sim.submit(32, 32, rank=2)
    standard = sim.submit(32, 32, rank=1)
    saturate(sim, until=12.0, every_s=every_s)
    assert started_after_s(background) <= 3.0
    assert started_after_s(standard) <= 2.0


def test_first_starts_go_before_those_that_gave_way() -> None:
    """Under overload urgent work takes the places of lower classes again and again."""
    config = SchedulerConfig(max_batch_size=4, max_wait_ms=3000.0)
    sim = Simulator(config)
    every_s = service_s(config) / 1.1
    saturate(sim, until=2.0, every_s=every_s)
    background = []
    for number in range(20):
        background.append(sim.submit(32, 32, rank=2))
        saturate(sim, until=2.5 + number / 2, every_s=every_s)
    saturate(sim, until=sim.now + 4.0, every_s=every_s)
    assert sim.scheduler.statistics().preemptions > 0
    assert max(map(started_after_s, background)) <= 3.0


def test_a_chunk_that_is_not_the_last_ends_with_a_block() -> None:
    sim = Simulator(SchedulerConfig(max_step_ms=20.0), block_size=16)
    for _ in range(3):
        sim.submit(8, 200)
    sim.run_until(0.1)
    long = sim.submit(1000, 1)
    ends = []
    while not sim.answers[long.key].reason:
        sim.step()
        ends.append(long.num_computed)
    assert len(ends) > 10
    assert all(end % 16 == 0 for end in ends[:-1])


def test_aged_work_never_turns_the_classes_over() -> None:
    config = SchedulerConfig(max_batch_size=4, max_wait_ms=300.0, preempt_ratio=0.0)
    sim = Simulator(config)
    # Of different lengths, so that places become free one by one.
    aged = [sim.submit(32, 20 + i % 17, rank=2) for i in range(200)]
    sim.run_until(1.0)  # the backlog is older than its bound by now
    num_before = sum(sequence.admitted_at is not None for sequence in aged)
    urgent = [sim.submit(32, 20 + i % 17, rank=0) for i in range(30)]
    while any(sequence.admitted_at is None for sequence in urgent):
        sim.step()
    in_between = sum(sequence.admitted_at is not None for sequence in aged) - num_before
    assert in_between <= 30 / 3 + 1


def test_waiting_beyond_the_bound_is_counted_once() -> None:
    sim = Simulator(SchedulerConfig(max_batch_size=1, max_wait_ms=300.0))
    sim.submit(10, 200)
    late = sim.submit(10, 1)
    sim.run_until(1.0)
    assert sim.scheduler.statistics().starvations == 1
    assert late.admitted_at is None
    sim.drain()
    assert sim.scheduler.statistics().starvations == 1


def test_a_large_request_is_passed_over_only_until_its_bound() -> None:
    config = SchedulerConfig(max_batch_size=8, max_wait_ms=3000.0)
    sim = Simulator(config, num_blocks=64)
    for _ in range(4):
        sim.submit(100, 100)
    sim.run_until(0.1)
    large = sim.submit(800, 8)
    small = []
    while large.admitted_at is None:
        assert sim.now < 10.0
        if len(small) < 200:
            small.append(sim.submit(60, 60))
        sim.run_until(sim.now + 0.05)
    assert any(s.admitted_at is not None for s in small), "smaller ones do not wait for it"
    # After its bound (rank 1: two thirds of 3 s) it waits for those that run, and for nobody else.
    assert started_after_s(large) < 2.0 + 1.5


def test_a_request_that_cannot_ever_fit_blocks_nobody() -> None:
    sim = Simulator(num_blocks=8, block_size=16)
    with pytest.raises(NeverFits, match="exceed"):
        sim.submit(8 * 16 + 1, 1)
    next_one = sim.submit(20, 2)
    sim.drain()
    assert sim.answers[next_one.key].reason == "length"


def test_min_rate_caps_who_runs_at_once() -> None:
    # 5 ms + 1 ms per decode: ten tokens per second and stream allow 95 of them, 100 only 5.
    sim = Simulator(SchedulerConfig(min_rate=100.0, max_batch_size=32))
    for _ in range(20):
        sim.submit(8, 100)
    most = 0
    while sim.scheduler.has_work:
        sim.step()
        most = max(most, sim.scheduler.statistics().running)
    assert 3 <= most <= 5
    assert max(max(answer.gaps_s) for answer in sim.answers.values()) <= 1 / 100 + 0.0082


def test_min_rate_holds_although_newcomers_take_time_for_their_prompts() -> None:
    # 5 ms + 1 ms per decode: 15 of them would have 50 tokens/s each. But an answer of 100 tokens
    # brings a prompt of 200, for 100 ms: one more per token, so that it is 7.
    sim = Simulator(SchedulerConfig(min_rate=50.0, max_batch_size=32))
    sequences = [sim.submit(200, 100) for _ in range(120)]
    sim.drain()
    later = [sim.answers[sequence.key].gaps_s for sequence in sequences[40:]]
    rates = [len(gaps_s) / sum(gaps_s) for gaps_s in later]
    assert statistics.median(rates) >= 0.95 * 50.0
    assert statistics.median(rates) <= 1.35 * 50.0, "and the machine is used"


def test_a_step_without_decodes_stays_short_enough_to_join() -> None:
    config = SchedulerConfig()
    sim = Simulator(config)
    sim.submit(4000, 1)
    while sim.step() is not None:
        shape = sim.plans[-1].shape
        assert shape.num_prefill_tokens <= config.max_chunk_tokens
        assert FAST.step_ms(shape) <= config.idle_step_ms + 1


def test_an_untaught_scheduler_starts_with_small_chunks() -> None:
    sim = Simulator(taught=False)
    sim.submit(2000, 1)
    sizes = [plan.shape.num_prefill_tokens for plan in iter(sim.step, None)]
    assert sizes[0] == sim.config.min_chunk_tokens
    assert all(later <= 2 * earlier for earlier, later in pairwise(sizes))
    assert max(sizes) > 200
