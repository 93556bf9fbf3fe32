"""Choosing tokens: each filter, reproducibility, and independence of the company."""

from __future__ import annotations

import itertools
import math
from collections import Counter

import pytest
import torch

from engine.llm.request import Sampling
from engine.llm.sampler import NUCLEUS_CANDIDATES, SampleRow, sample, seen_words, uniform

pytestmark = pytest.mark.unit

GREEDY = Sampling(temperature=0.0)
CPU = torch.device("cpu")


def row(sampling: Sampling, seed: int = 0, position: int = 0) -> SampleRow:
    return SampleRow(sampling=sampling, seed=seed, position=position)


def logits_of(*probabilities: float) -> torch.Tensor:
    return torch.tensor([probabilities], dtype=torch.float32).log()


def draw_many(logits: torch.Tensor, sampling: Sampling, count: int = 4000) -> Counter[int]:
    rows = [row(sampling, seed=7, position=i) for i in range(count)]
    return Counter(sample(logits.repeat(count, 1), rows))


def test_greedy_takes_the_largest_logit() -> None:
    assert sample(torch.tensor([[0.0, 3.0, 1.0], [5.0, 3.0, 1.0]]), [row(GREEDY)] * 2) == [1, 0]


def test_a_tiny_temperature_is_greedy() -> None:
    assert sample(torch.tensor([[0.0, 3.0, 2.9]]), [row(Sampling(temperature=1e-30))]) == [1]


def test_draws_follow_the_distribution() -> None:
    drawn = draw_many(logits_of(0.5, 0.3, 0.2), Sampling())
    for token, expected in enumerate((0.5, 0.3, 0.2)):
        assert math.isclose(drawn[token] / 4000, expected, abs_tol=0.03)


def test_temperature_sharpens_the_distribution() -> None:
    drawn = draw_many(logits_of(0.6, 0.4), Sampling(temperature=0.5))
    assert math.isclose(drawn[0] / 4000, 0.36 / 0.52, abs_tol=0.03)


def test_top_k_keeps_the_k_best() -> None:
    assert set(draw_many(logits_of(0.1, 0.4, 0.2, 0.3), Sampling(top_k=2))) == {1, 3}


def test_top_k_over_the_vocabulary_is_off() -> None:
    assert set(draw_many(logits_of(0.4, 0.3, 0.3), Sampling(top_k=50))) == {0, 1, 2}


def test_top_p_keeps_the_smallest_set_that_reaches_it() -> None:
    drawn = draw_many(logits_of(0.1, 0.5, 0.15, 0.25), Sampling(top_p=0.6))
    assert set(drawn) == {1, 3}
    assert math.isclose(drawn[1] / 4000, 0.5 / 0.75, abs_tol=0.03)


def test_a_small_top_p_keeps_the_best_token() -> None:
    assert set(draw_many(logits_of(0.2, 0.8), Sampling(top_p=0.01))) == {1}


def test_top_p_applies_to_what_top_k_left() -> None:
    drawn = draw_many(logits_of(0.4, 0.2, 0.2, 0.2), Sampling(top_k=2, top_p=0.6))
    assert set(drawn) == {0}  # 0.4 of 0.6 left is 0.67 of the rest


def test_a_nucleus_wider_than_the_candidates_is_not_cut() -> None:
    size = NUCLEUS_CANDIDATES * 4
    drawn = draw_many(torch.zeros(1, size), Sampling(top_p=0.9), count=2000)
    assert NUCLEUS_CANDIDATES < len(drawn) <= math.ceil(0.9 * size)


@pytest.mark.parametrize("sampling", [Sampling(min_p=0.5), Sampling(min_p=0.5, top_k=3)])
def test_min_p_is_a_share_of_the_best(sampling: Sampling) -> None:
    assert set(draw_many(logits_of(0.5, 0.3, 0.2), sampling)) == {0, 1}


def test_repetition_penalty_lowers_seen_words_only() -> None:
    penalised = row(Sampling(temperature=0.0, repetition_penalty=2.0))
    penalised.seen = seen_words([0, 2], 4, CPU)
    assert sample(torch.tensor([[3.0, 2.0, 3.0, 1.0]]), [penalised]) == [1]
    assert sample(torch.tensor([[-1.0, -1.5, -1.0, -3.0]]), [penalised]) == [1]


def test_the_same_seed_and_position_choose_alike_in_any_company() -> None:
    torch.manual_seed(1)
    logits = torch.randn(24, 1000)
    samplings = [
        Sampling(),
        Sampling(temperature=0.7, top_k=40),
        Sampling(top_p=0.9),
        Sampling(top_p=0.5, min_p=0.02, temperature=1.5),
        Sampling(min_p=0.1),
        GREEDY,
    ]
    rows = [row(samplings[i % 6], seed=i // 6, position=i) for i in range(24)]
    alone = [sample(logits[i : i + 1].clone(), [rows[i]])[0] for i in range(24)]
    together = sample(logits.clone(), rows)
    turned = sample(logits.flip(0).clone(), rows[::-1])
    assert together == alone
    assert turned[::-1] == alone


def test_seeds_and_positions_give_unrelated_numbers() -> None:
    numbers = [uniform(seed, position) for seed in range(100) for position in range(100)]
    assert len(set(numbers)) > 9990
    assert min(numbers) > 0.0
    assert max(numbers) < 1.0
    assert math.isclose(sum(numbers) / 10_000, 0.5, abs_tol=0.01)
    pairs = list(itertools.pairwise(numbers))
    covariance = sum((a - 0.5) * (b - 0.5) for a, b in pairs) / len(pairs)
    assert abs(covariance) < 0.003


def test_a_probability_of_zero_is_never_drawn() -> None:
    assert set(draw_many(logits_of(0.0, 0.5, 0.0, 0.5, 0.0), Sampling())) == {1, 3}


@pytest.mark.parametrize("bad", [float("nan"), float("inf")])
def test_logits_that_are_no_numbers_are_a_fault(bad: float) -> None:
    with pytest.raises(FloatingPointError):
        sample(torch.tensor([[0.0, bad]]), [row(GREEDY)])
