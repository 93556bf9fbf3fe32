"""The step loop over a fake model: tokens, ends, faults, look-ahead, memory."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from typing import Any

import pytest
import torch
from msgspec import structs

from engine.errors import InvalidInput, Overloaded
from engine.llm.messages import Release
from engine.llm.request import Sampling
from tests.fakes.llm_bench import GREEDY, RunnerBench
from tests.fakes.llm_model import VOCABULARY, Group, expected_tokens

pytestmark = pytest.mark.unit


def greedy(max_tokens: int, *, ignore_eos: bool = False) -> Sampling:
    return Sampling(temperature=0.0, max_tokens=max_tokens, ignore_eos=ignore_eos)


def prompt_of(seed: int, length: int) -> list[int]:
    return [(seed * 7 + i * i) % VOCABULARY for i in range(length)]


def test_an_answer_is_what_the_model_says() -> None:
    bench = RunnerBench()
    prompt = prompt_of(1, 9)
    bench.submit(1, prompt, greedy(20))
    bench.run()
    assert bench.received[1].tokens == expected_tokens(prompt, 20)
    finish = bench.received[1].finish
    assert finish is not None
    assert (finish.reason, finish.prompt_tokens, finish.completion_tokens) == ("length", 9, 20)
    bench.check_empty()


def test_company_changes_nothing() -> None:
    bench = RunnerBench(num_blocks=40, max_chunk_tokens=16, max_batch_size=4)
    prompts = {key: prompt_of(key, 3 + 5 * key) for key in range(8)}
    for key, prompt in prompts.items():
        bench.submit(key, prompt, greedy(10 + key))
        bench.step()
    bench.run()
    for key, prompt in prompts.items():
        assert bench.received[key].tokens == expected_tokens(prompt, 10 + key)
    bench.check_empty()


def test_preempted_sequences_go_on_where_they_were() -> None:
    bench = RunnerBench(num_blocks=12, max_batch_size=4)
    prompts = {key: prompt_of(key, 8) for key in range(4)}
    for key, prompt in prompts.items():
        bench.submit(key, prompt, greedy(24))
    bench.run()
    assert bench.runner.gauges().preemptions > 0
    for key, prompt in prompts.items():
        assert bench.received[key].tokens == expected_tokens(prompt, 24)
    bench.check_empty()


def test_swapped_sequences_come_back_from_host_memory() -> None:
    swaps: dict[str, Any] = {"swap_ms_per_block": 1e-6, "max_swapped_blocks": 100}
    bench = RunnerBench(num_blocks=12, max_batch_size=4, prefix_cache=False, **swaps)
    prompts = {key: prompt_of(key, 8) for key in range(4)}
    for key, prompt in prompts.items():
        bench.submit(key, prompt, greedy(24))
    bench.run()
    assert bench.scheduler.statistics().swaps > 0
    for key, prompt in prompts.items():
        assert bench.received[key].tokens == expected_tokens(prompt, 24)
    bench.check_empty()


def test_an_end_token_ends_the_answer() -> None:
    prompt = prompt_of(3, 5)
    tokens = expected_tokens(prompt, 30)
    end = tokens[6]
    bench = RunnerBench(end_ids=frozenset({end}))
    bench.submit(1, prompt, greedy(30))
    bench.submit(2, prompt, greedy(30, ignore_eos=True))
    bench.run()
    ended, ignoring = bench.received[1], bench.received[2]
    assert ended.tokens == tokens[: tokens.index(end)]
    assert ended.finish is not None
    assert (ended.finish.reason, ended.finish.completion_tokens) == (
        "stop",
        tokens.index(end) + 1,
    )
    assert ignoring.tokens == tokens


def test_a_stop_string_ends_the_answer_and_frees_its_blocks() -> None:
    bench = RunnerBench()
    prompt = prompt_of(3, 5)
    tokens = expected_tokens(prompt, 30)
    bench.submit(1, prompt, greedy(30), stops=frozenset({tokens[4]}))
    bench.run()
    received = bench.received[1]
    assert received.tokens == tokens[: tokens.index(tokens[4])]
    assert received.finish is not None
    assert received.finish.reason == "stop"
    bench.check_empty()


def test_a_cancelled_sequence_frees_its_blocks_at_once() -> None:
    bench = RunnerBench()
    bench.submit(1, prompt_of(1, 9), greedy(100))
    for _ in range(5):
        bench.step()
    assert bench.pool.num_owned > 0
    bench.runner.cancel(1)
    bench.check_empty()
    bench.runner.cancel(1)  # again, too late
    bench.step()
    assert bench.received[1].finish is None


def test_a_deadline_ends_running_and_waiting_sequences() -> None:
    bench = RunnerBench(max_batch_size=1)
    bench.submit(1, prompt_of(1, 4), greedy(200), deadline=0.1)
    bench.submit(2, prompt_of(2, 4), greedy(200), deadline=0.05)
    bench.run()
    assert bench.now < 0.2
    for key in (1, 2):
        finish = bench.received[key].finish
        assert finish is not None
        assert finish.reason == "deadline"
    assert bench.received[1].texts
    assert not bench.received[2].texts
    bench.check_empty()


def test_what_never_fits_is_refused() -> None:
    bench = RunnerBench(num_blocks=4, block_size=4)
    with pytest.raises(InvalidInput):
        bench.submit(1, prompt_of(1, 17), greedy(5))
    bench.check_empty()


def test_too_many_waiting_are_refused() -> None:
    bench = RunnerBench(max_waiting=1)
    bench.submit(1, prompt_of(1, 4))
    with pytest.raises(Overloaded):
        bench.submit(2, prompt_of(2, 4))


def test_a_failed_step_can_be_run_again() -> None:
    bench = RunnerBench()
    prompts = {key: prompt_of(key, 6) for key in range(3)}
    for key, prompt in prompts.items():
        bench.submit(key, prompt, greedy(12))
    failing = iter([False, True, False, True, True] + [False] * 100)

    def fail_sometimes(groups: Sequence[Group]) -> None:
        if next(failing):
            raise RuntimeError("a kernel failed")

    bench.before_step = fail_sometimes
    faults = 0
    while not bench.runner.is_idle:
        try:
            bench.step()
        except RuntimeError:
            faults += 1
            bench.scheduler.check_integrity()
    assert faults == 3
    for key, prompt in prompts.items():
        assert bench.received[key].tokens == expected_tokens(prompt, 12)
    bench.check_empty()


def test_a_deadline_is_told_although_the_step_failed() -> None:
    bench = RunnerBench(max_batch_size=1)
    bench.submit(1, prompt_of(1, 6), greedy(50))
    bench.submit(2, prompt_of(2, 6), greedy(50), deadline=0.001)

    def fail_once(groups: Sequence[Group]) -> None:
        bench.before_step = lambda groups: None
        raise RuntimeError("a kernel failed")

    bench.step()
    bench.before_step = fail_once
    with pytest.raises(RuntimeError):
        bench.step()
    bench.step()
    finish = bench.received[2].finish
    assert finish is not None
    assert finish.reason == "deadline"


def test_who_ran_is_answered_after_a_fault_and_who_only_waited_is_left_to_be_sent_again() -> None:
    bench = RunnerBench(max_batch_size=2)
    for key in range(4):
        bench.submit(key, prompt_of(key, 6), greedy(12))
    while bench.scheduler.statistics().running < 2:
        bench.step()
    bench.tell(bench.runner.fail_all("ref"))
    for key in (0, 1):
        finish = bench.received[key].finish
        assert finish is not None
        assert (finish.reason, finish.detail) == ("error", "ref")
    assert [bench.received[key].finish for key in (2, 3)] == [None, None]
    bench.check_empty()


def test_who_was_in_the_step_that_failed_did_not_only_wait() -> None:
    bench = RunnerBench(max_batch_size=2)

    def fail(groups: object) -> None:
        raise RuntimeError("a kernel failed")

    bench.before_step = fail
    for key in range(4):
        bench.submit(key, prompt_of(key, 6), greedy(12))
    with pytest.raises(RuntimeError):
        bench.step()
    bench.tell(bench.runner.fail_all("ref"))
    assert [key for key in range(4) if bench.received[key].finish is not None] == [0]


@pytest.mark.parametrize(
    "error",
    [
        torch.OutOfMemoryError("CUDA out of memory"),
        MemoryError(),
        RuntimeError("DefaultCPUAllocator: can't allocate memory: you tried to allocate"),
    ],
)
def test_out_of_memory_shrinks_the_step_until_it_fits(error: Exception) -> None:
    bench = RunnerBench()
    prompts = {key: prompt_of(key, 30) for key in range(3)}
    sizes = []

    def fit_ten(groups: Sequence[Group]) -> None:
        sizes.append(sum(len(group.token_ids) for group in groups))
        if sizes[-1] > 20:
            raise error

    bench.before_step = fit_ten
    for key, prompt in prompts.items():
        bench.submit(key, prompt, greedy(5))
    bench.run()
    too_large = [a for a, b in pairwise(sizes) if a > 20 and b < a]
    assert too_large, "no step was shrunk"
    for key, prompt in prompts.items():
        assert bench.received[key].tokens == expected_tokens(prompt, 5)
    bench.check_empty()


def test_out_of_memory_with_a_single_row_is_a_fault() -> None:
    bench = RunnerBench()

    def never_fit(groups: Sequence[Group]) -> None:
        raise MemoryError

    bench.before_step = never_fit
    bench.submit(1, prompt_of(1, 9))
    with pytest.raises(MemoryError):
        bench.step()
    bench.scheduler.check_integrity()


@pytest.mark.parametrize("sampling", [GREEDY, Sampling(temperature=1.0, top_k=2, seed=3)])
def test_look_ahead_changes_no_token_but_takes_fewer_steps(sampling: Sampling) -> None:
    received, steps = [], []
    for speculative_tokens in (0, 4):
        bench = RunnerBench(memory=2, speculative_tokens=speculative_tokens)
        for key in range(3):
            bench.submit(key, prompt_of(key, 20), structs.replace(sampling, max_tokens=80))
        bench.run()
        received.append([bench.received[key].tokens for key in range(3)])
        steps.append(bench.runner.num_steps)
        bench.check_empty()
    assert received[0] == received[1]
    if sampling is GREEDY:
        assert steps[1] < 0.7 * steps[0]
        assert bench.runner.gauges().accepted > 0


def test_stops_and_ends_within_a_run_of_guesses_cut_there() -> None:
    prompt = prompt_of(1, 20)
    tokens = expected_tokens(prompt, 80, memory=2)
    for at in range(10, 60, 7):
        end = frozenset({tokens[at]})
        first = tokens.index(tokens[at])
        ending = RunnerBench(memory=2, speculative_tokens=4, end_ids=end)
        ending.submit(1, prompt, greedy(80))
        ending.run()
        stopping = RunnerBench(memory=2, speculative_tokens=4)
        stopping.submit(1, prompt, greedy(80), stops=end)
        stopping.run()
        for bench in (ending, stopping):
            assert bench.received[1].tokens == tokens[:first]
            finish = bench.received[1].finish
            assert finish is not None
            assert (finish.reason, finish.completion_tokens) == ("stop", first + 1)
            bench.check_empty()


def test_a_seed_gives_the_same_answer_alone_and_in_company() -> None:
    sampling = Sampling(temperature=1.2, top_p=0.95, seed=11, max_tokens=30)
    prompt = prompt_of(5, 12)
    answers = []
    for company in (0, 5):
        bench = RunnerBench(num_blocks=24, max_batch_size=4)
        for other in range(company):
            bench.submit(100 + other, prompt_of(other, 10), Sampling(max_tokens=20))
        bench.submit(1, prompt, sampling)
        bench.run()
        answers.append(bench.received[1].tokens)
    assert answers[0] == answers[1]
    assert answers[0] != expected_tokens(prompt, 30)


def test_without_a_seed_answers_differ() -> None:
    bench = RunnerBench()
    for key in (1, 2):
        bench.submit(key, prompt_of(1, 8), Sampling(max_tokens=30))
    bench.run()
    assert bench.received[1].tokens != bench.received[2].tokens


def test_a_repetition_penalty_counts_prompt_and_output() -> None:
    bench = RunnerBench(speculative_tokens=4)
    prompt = prompt_of(1, 8)
    sampling = Sampling(temperature=0.0, repetition_penalty=10.0, max_tokens=20)
    bench.submit(1, prompt, sampling)
    bench.run()
    tokens = bench.received[1].tokens
    assert not set(prompt) & set(tokens[:10])
    assert len(set(tokens[:10])) == 10


def test_a_reader_with_unsent_text_gives_way() -> None:
    bench = RunnerBench(max_batch_size=2, step_s=lambda rows: 0.03 * rows, max_step_ms=40.0)
    for key in (1, 2):
        bench.submit(key, prompt_of(key, 4), greedy(100))
    for _ in range(20):
        bench.step()
    before = {key: len(bench.received[key].texts) for key in (1, 2)}
    for _ in range(20):
        at_us = round(bench.now * 1e6)
        bench.runner.note_releases([Release(1, 0, 1.0, at_us), Release(2, 1000, 1000.0, at_us)])
        bench.step()
    grown = {key: len(bench.received[key].texts) - before[key] for key in (1, 2)}
    assert grown[2] > 2 * grown[1]


def test_gauges_tell_what_happened() -> None:
    bench = RunnerBench(memory=2, speculative_tokens=4)
    bench.submit(1, prompt_of(1, 20), greedy(40))
    bench.step()
    during = bench.runner.gauges()
    assert (during.running, during.blocks_total) == (1, 64)
    assert during.blocks_owned > 0
    bench.run()
    after = bench.runner.gauges()
    assert (after.running, after.waiting, after.blocks_owned) == (0, 0, 0)
    assert (after.tokens, after.prompt_tokens) == (40, 20)
    assert after.steps == bench.runner.num_steps
    assert after.step_p50_s > 0.0
    assert after.batch_mean == 1.0
    counts = {name: buckets[-1] for name, buckets in after.histograms.items()}
    assert counts["time_to_first_token_s"] == counts["prompt_tokens"] == 1
    assert counts["inter_token_s"] == 39
    assert counts["step_s"] == after.steps
