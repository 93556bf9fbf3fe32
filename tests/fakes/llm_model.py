"""A paged language model without weights, whose next token depends on all it has in its cache.

The cache really holds the tokens, and logits are computed from what the block table leads to. So
a block that was freed too early, shared wrongly or not written shows as a wrong token, which
:func:`expected_tokens` tells.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Protocol

import torch
from torch import Tensor

VOCABULARY = 32
EMPTY = -1

Block = tuple[list[int], list[frozenset[bool]]]


class Group(Protocol):
    """What the model reads of one sequence's rows."""

    @property
    def token_ids(self) -> Sequence[int]: ...
    @property
    def start_position(self) -> int: ...
    @property
    def blocks(self) -> Sequence[int]: ...
    @property
    def num_logits(self) -> int: ...


@dataclass(slots=True)
class FakeModel:
    """``memory`` is how many tokens back the next one depends on (0: all of them); with 2 the
    answers soon repeat themselves, which look-ahead guesses. ``before_step`` runs first in every
    ``execute`` and may raise."""

    num_blocks: int
    block_size: int
    vocabulary: int = VOCABULARY
    memory: int = 0
    before_step: Callable[[Sequence[Group]], None] = lambda groups: None
    slots: list[int] = field(init=False)
    lineages: list[frozenset[bool]] = field(init=False)  # cheaper or not: who had a hand in a slot
    steps: list[int] = field(init=False, default_factory=list)  # rows of each step
    device: torch.device = field(init=False, default=torch.device("cpu"))
    is_cheaper: bool = field(init=False, default=False)

    def __post_init__(self) -> None:
        self.slots = [EMPTY] * (self.num_blocks * self.block_size)
        self.lineages = [frozenset()] * len(self.slots)

    def use_cheaper(self, is_on: bool) -> None:
        self.is_cheaper = is_on

    def execute(self, groups: Sequence[Group]) -> Tensor:
        self.before_step(groups)
        for group in groups:
            for i, token in enumerate(group.token_ids):
                lineage = self.lineage(group, group.start_position + i) | {self.is_cheaper}
                slot = self._slot(group, group.start_position + i)
                self.slots[slot], self.lineages[slot] = token, lineage
        self.steps.append(sum(len(group.token_ids) for group in groups))
        rows: list[Tensor] = []
        for group in groups:
            end = group.start_position + len(group.token_ids)
            prefix = [self.slots[self._slot(group, at)] for at in range(end)]
            assert EMPTY not in prefix, "attention over a position that was never written"
            rows += [
                logits_after(prefix[:length], self.vocabulary, self.memory)
                for length in range(end - group.num_logits + 1, end + 1)
            ]
        return torch.stack(rows) if rows else torch.empty(0, self.vocabulary)

    def lineage(self, group: Group, position: int) -> frozenset[bool]:
        """Of all that a token at that position sees before it."""
        return self.lineages[self._slot(group, position - 1)] if position else frozenset()

    def copy_block(self, source: int, target: int) -> None:
        self.swap_in(self.swap_out([source]), [target])

    def swap_out(self, blocks: Sequence[int]) -> list[Block]:
        ranges = [self._range(block) for block in blocks]
        return [(self.slots[each], self.lineages[each]) for each in ranges]

    def swap_in(self, handle: list[Block], blocks: Sequence[int]) -> None:
        for saved, block in zip(handle, blocks, strict=True):
            self.slots[self._range(block)], self.lineages[self._range(block)] = saved

    def _range(self, block: int) -> slice:
        return slice(block * self.block_size, (block + 1) * self.block_size)

    def _slot(self, group: Group, position: int) -> int:
        block = group.blocks[position // self.block_size]
        return block * self.block_size + position % self.block_size


def logits_after(prefix: Sequence[int], vocabulary: int = VOCABULARY, memory: int = 0) -> Tensor:
    """The logits that follow ``prefix``, all different."""
    return _logits_of(tuple(prefix[-memory:]), vocabulary)


@lru_cache(maxsize=20_000)
def _logits_of(remembered: tuple[int, ...], vocabulary: int) -> Tensor:
    # A string seeds the same numbers in every process, unlike hash().
    dice = random.Random(repr(remembered))
    return torch.tensor([dice.uniform(-4.0, 4.0) for _ in range(vocabulary)])


def expected_tokens(
    prompt: Sequence[int],
    count: int,
    end_ids: frozenset[int] = frozenset(),
    *,
    vocabulary: int = VOCABULARY,
    memory: int = 0,
) -> list[int]:
    """The greedy answer of ``count`` tokens, or up to and with an end token."""
    tokens = list(prompt)
    while len(tokens) < len(prompt) + count:
        tokens.append(int(logits_after(tokens, vocabulary, memory).argmax()))
        if tokens[-1] in end_ids:
            break
    return tokens[len(prompt) :]
