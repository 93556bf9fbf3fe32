"""Carries out what a plan says: copies between device and host, the forward pass, the choice."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from typing import Any, Protocol

import torch
from torch import Tensor

from engine.llm.generation import Generation
from engine.llm.packing import RowGroup
from engine.llm.sampler import SampleRow, sample, seen_words
from engine.llm.scheduling.plan import PlannedItem, StepPlan


class Model(Protocol):
    """What runs; :class:`engine.llm.model.PagedModel`."""

    @property
    def device(self) -> torch.device: ...
    @property
    def vocabulary(self) -> int: ...
    def use_cheaper(self, is_on: bool) -> None: ...
    def execute(self, groups: Sequence[RowGroup]) -> Tensor: ...
    def swap_out(self, blocks: Sequence[int]) -> Any: ...
    def swap_in(self, handle: Any, blocks: Sequence[int]) -> None: ...


class StepExecutor:
    """Owns the model and the host copies of preempted sequences, of which there are as many as
    the scheduler plans. Every ``run`` is followed by ``settle`` or ``void`` of the same plan."""

    def __init__(self, model: Model) -> None:
        self.swap_s = 0.0  # spent on copies
        self._model = model
        self._host_copies: dict[int, Any] = {}

    @property
    def num_host_copies(self) -> int:
        return len(self._host_copies)

    def use_cheaper(self, is_on: bool) -> None:
        """With which weights the next ``run`` computes."""
        self._model.use_cheaper(is_on)

    def run(self, plan: StepPlan, generations: Mapping[int, Generation]) -> dict[int, list[int]]:
        """The model's choices: per sampling item one token for each of its ``num_drafts + 1``
        last positions. Whatever it raises, no generation has changed."""
        self._swap(plan)
        if not plan.items:
            return {}
        groups = [group for item in plan.items for group in _groups(item)]
        logits = self._model.execute(groups)
        sampling = [item for item in plan.items if item.samples]
        if not sampling:
            return {}
        rows = [
            row for item in sampling for row in self._rows(generations[item.sequence.key], item)
        ]
        tokens = iter(sample(logits, rows))
        return {
            item.sequence.key: [next(tokens) for _ in range(item.num_drafts + 1)]
            for item in sampling
        }

    def settle(self, plan: StepPlan) -> None:
        """The plan is committed."""
        for move in plan.swap_in:
            del self._host_copies[move.key]

    def void(self, plan: StepPlan) -> None:
        """The plan is rolled back: what it copied out is still in its blocks."""
        for move in plan.swap_out:
            self._host_copies.pop(move.key, None)

    def forget(self, key: int) -> None:
        """A sequence has ended, swapped out or not."""
        self._host_copies.pop(key, None)

    def _swap(self, plan: StepPlan) -> None:
        if not plan.swap_out and not plan.swap_in:
            return
        began = time.monotonic()
        for move in plan.swap_out:
            self._host_copies[move.key] = self._model.swap_out(move.blocks)
        for move in plan.swap_in:
            self._model.swap_in(self._host_copies[move.key], move.blocks)
        self.swap_s += time.monotonic() - began

    def _rows(self, generation: Generation, item: PlannedItem) -> list[SampleRow]:
        sequence, sampling = generation.sequence, generation.sampling
        if sampling.repetition_penalty != 1.0 and generation.seen is None:
            words = [*sequence.prompt_ids, *sequence.output_ids]
            generation.seen = seen_words(words, self._model.vocabulary, self._model.device)
        return [
            SampleRow(
                sampling=sampling,
                seed=generation.seed,
                position=len(sequence.output_ids) + i,
                seen=generation.seen,
            )
            for i in range(item.num_drafts + 1)
        ]


def _groups(item: PlannedItem) -> list[RowGroup]:
    """The prompt's tokens as one group, then the answer's, which after a preemption may be many.
    Guesses are one per token: each row is then computed with the very kernels that a step without
    guesses would have used. Sums in another order end in other bits, which int8 rounding makes
    large enough to change the choice where two tokens are close."""
    if item.num_drafts == 0:
        num_prompt = max(0, item.sequence.num_prompt - item.start)
        prompt, output = item.token_ids[:num_prompt], item.token_ids[num_prompt:]
        wanted = int(item.samples)
        groups = []
        if prompt:
            num_logits = 0 if output else wanted
            groups.append(_group(item, item.start, prompt, num_logits=num_logits, is_prompt=True))
        if output:
            groups.append(_group(item, item.start + len(prompt), output, num_logits=wanted))
        return groups
    return [
        _group(item, item.start + i, (token_id,), num_logits=1)
        for i, token_id in enumerate(item.token_ids)
    ]


def _group(
    item: PlannedItem,
    start: int,
    token_ids: tuple[int, ...],
    *,
    num_logits: int,
    is_prompt: bool = False,
) -> RowGroup:
    return RowGroup(
        token_ids=token_ids,
        start_position=start,
        blocks=item.sequence.blocks,
        num_logits=num_logits,
        is_prompt=is_prompt,
    )
