"""Requests, cancels, deadlines, faults and other weights at every step boundary of a runner with a
tiny cache: everybody is answered once and right, nobody sees what weights computed that were not in
use while it ran, and every block comes back."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from itertools import count
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from engine.errors import InvalidInput, Overloaded
from engine.llm.request import Sampling
from tests.fakes.llm_bench import RunnerBench
from tests.fakes.llm_model import VOCABULARY, Group, expected_tokens

pytestmark = pytest.mark.property

MEMORY = 2  # of the fake model: answers repeat themselves, so look-ahead has something to guess
END = 5


class Chaos:
    """Drives a bench with one source of chance; keeps account of what everybody is owed."""

    def __init__(self, dice: random.Random) -> None:
        self.dice = dice
        swaps: dict[str, Any] = dice.choice(
            [{}, {"swap_ms_per_block": 1e-6, "max_swapped_blocks": 20}]
        )
        self.bench = RunnerBench(
            num_blocks=dice.randint(8, 24),
            block_size=dice.choice([1, 3, 4]),
            memory=MEMORY,
            end_ids=frozenset({END}),
            speculative_tokens=dice.choice([0, 4]),
            prefix_cache=dice.random() < 0.7,
            max_batch_size=dice.randint(1, 6),
            max_waiting=30,
            max_chunk_tokens=dice.choice([16, 64]),
            **swaps,
        )
        self.prompts: dict[int, tuple[list[int], int]] = {}
        self.withdrawn: set[int] = set()
        self.failed: set[int] = set()
        self.refused = 0
        self.ran_with: dict[int, set[bool]] = {}
        self.bench.before_step = self.check_and_maybe_fail
        self.fault_rate = 0.1
        self._keys = count()

    def check_and_maybe_fail(self, groups: Sequence[Group]) -> None:
        if self.dice.random() < self.fault_rate:
            raise self.dice.choice([RuntimeError("a kernel failed"), MemoryError()])
        # What fails is rolled back, and leaves no trace in anybody's answer.
        model = self.bench.model
        keys = {id(s.blocks): s.key for s in map(self.bench.scheduler.get, self.prompts) if s}
        # Of each sequence the first group: what the others see before them is yet to be written.
        firsts = {keys[id(group.blocks)]: group for group in reversed(groups)}
        for key, group in firsts.items():
            ran_with = self.ran_with.setdefault(key, set())
            ran_with.add(model.is_cheaper)
            assert model.lineage(group, group.start_position) <= ran_with

    def submit(self) -> None:
        key, dice = next(self._keys), self.dice
        # Few beginnings, so that prefixes are shared.
        prompt = [dice.randrange(2)] * dice.randrange(8)
        prompt += [dice.randrange(VOCABULARY) for _ in range(dice.randint(1, 12))]
        max_tokens = dice.randint(1, 20)
        sampling = Sampling(temperature=0.0, max_tokens=max_tokens)
        deadline = self.bench.now + dice.random() * 2 if dice.random() < 0.1 else None
        try:
            self.bench.submit(
                key,
                prompt,
                sampling,
                rank=dice.randrange(3),
                tenant=dice.choice("ab"),
                deadline=deadline,
            )
        except (InvalidInput, Overloaded):
            self.refused += 1
        else:
            self.prompts[key] = (prompt, max_tokens)

    def change_weights(self) -> None:
        self.bench.runner.use_cheaper(self.dice.random() < 0.5)

    def withdraw(self) -> None:
        key = self.dice.choice(list(self.prompts) or [0])
        if key in self.prompts and self.bench.received[key].finish is None:
            # What is over, but could not be told because a step failed, is told all the same.
            is_running = self.bench.scheduler.get(key) is not None
            self.bench.runner.cancel(key)
            if is_running:
                self.withdrawn.add(key)

    def fail_all(self) -> None:
        owed = {key for key in self.prompts if self.bench.received[key].finish is None}
        self.bench.tell(self.bench.runner.fail_all("ref"))
        lost = {key for key in owed if self.bench.received[key].finish is None}
        self.failed |= owed - lost
        self.withdrawn |= lost  # who only waited is not told anything either

    def step(self) -> None:
        try:
            self.bench.step()
        except (RuntimeError, MemoryError):
            self.bench.scheduler.check_integrity()

    def finish(self) -> None:
        self.fault_rate = 0.0
        self.bench.run()
        self.bench.check_empty()

    def check_answers(self) -> None:
        for key, (prompt, max_tokens) in self.prompts.items():
            received = self.bench.received[key]
            expected = expected_tokens(prompt, max_tokens, frozenset({END}), memory=MEMORY)
            readable = [token for token in expected if token != END]
            assert received.tokens == readable[: len(received.tokens)]
            if key in self.withdrawn:
                assert received.finish is None
                continue
            assert received.finish is not None
            if received.finish.reason in ("stop", "length"):
                assert received.finish.is_cheaper is (True in self.ran_with[key])
            if key in self.failed:
                assert received.finish.reason == "error"
            elif received.finish.reason != "deadline":
                assert received.finish.completion_tokens == len(expected)
                assert received.tokens == readable


@settings(max_examples=30)
@given(st.randoms(use_true_random=False), st.integers(5, 60))
def test_everybody_is_answered_and_every_block_comes_back(
    dice: random.Random, num_events: int
) -> None:
    chaos = Chaos(dice)
    events: list[Callable[[], None]] = [chaos.submit, chaos.submit, chaos.step, chaos.step]
    events += [chaos.withdraw, chaos.change_weights]
    for _ in range(num_events):
        dice.choice(events)()
    chaos.finish()
    chaos.check_answers()


@pytest.mark.parametrize("seed", range(4))
def test_three_hundred_requests_with_faults_at_every_boundary(seed: int) -> None:
    chaos = Chaos(random.Random(seed))
    while len(chaos.prompts) < 300:
        for _ in range(chaos.dice.randrange(3)):
            chaos.submit()
        if chaos.dice.random() < 0.3:
            chaos.withdraw()
        if chaos.dice.random() < 0.005:
            chaos.fail_all()
        if chaos.dice.random() < 0.05:
            chaos.change_weights()
        chaos.step()
    chaos.finish()
    chaos.check_answers()
    assert chaos.withdrawn
    assert len(chaos.withdrawn) + len(chaos.failed) < 250
