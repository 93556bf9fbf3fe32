"""Runs a model before it serves, which also teaches the scheduler what steps cost here."""

from __future__ import annotations

import time
from collections.abc import Iterator

from engine.llm.model import PagedModel
from engine.llm.packing import RowGroup
from engine.llm.request import Sampling
from engine.llm.sampler import SampleRow, sample
from engine.llm.step_cost import StepCost, StepShape

BUDGET_S = 15.0
SHORT_S = 0.1
DECODE_CONTEXT = 64  # tokens
CHUNKS = (16, 64, 128, 256, 512)
SWAPPED_BLOCKS = 8
_GREEDY = Sampling(temperature=0.0)


class WarmUp:
    """Runs steps of several shapes over the empty cache; what they leave in its blocks belongs
    to nobody. Call it before the first sequence."""

    def __init__(self, model: PagedModel, max_seq_length: int) -> None:
        self._model = model
        slots = model.num_blocks * model.block_size
        self._longest = min(max_seq_length, slots)

    def learn_costs(self, cost: StepCost, max_batch_size: int) -> None:
        """Time decode batches of 1, 2, 4 … sequences and prefill chunks; those that would take
        longer than the budget allows are left out."""
        began = time.monotonic()
        for shape, groups in [*self._decodes(max_batch_size), *self._prefills()]:
            step_s = self._run(groups)
            if step_s < SHORT_S:  # what only a first run has to do is a large part of it
                step_s = min(step_s, self._run(groups), self._run(groups))
            cost.observe(shape, 1000 * step_s)
            if time.monotonic() - began + 2 * step_s > BUDGET_S:
                break

    def learn_cheaper_costs(self, cost: StepCost, max_batch_size: int) -> None:
        """The same with the cheaper weights, which the model must have; the usual ones are in use
        again afterwards."""
        self._model.use_cheaper(True)
        cost.use_cheaper(True)
        self.learn_costs(cost, max_batch_size)
        self._model.use_cheaper(False)
        cost.use_cheaper(False)

    def time_swap_ms(self) -> float:
        """One block's copy between device and host, in either direction."""
        blocks = list(range(min(SWAPPED_BLOCKS, self._model.num_blocks)))
        self._model.swap_in(self._model.swap_out(blocks), blocks)
        began = time.monotonic()
        self._model.swap_in(self._model.swap_out(blocks), blocks)
        return 1000 * (time.monotonic() - began) / (2 * len(blocks))

    def _run(self, groups: list[RowGroup]) -> float:
        began = time.monotonic()
        logits = self._model.execute(groups)
        rows = [SampleRow(sampling=_GREEDY, seed=0, position=0) for _ in range(len(logits))]
        sample(logits, rows)
        return time.monotonic() - began

    def _decodes(self, max_batch_size: int) -> Iterator[tuple[StepShape, list[RowGroup]]]:
        context = min(DECODE_CONTEXT, self._longest)
        blocks_each = -(-context // self._model.block_size)
        size = 1
        while size <= min(max_batch_size, self._model.num_blocks // blocks_each):
            groups = [self._group(i * blocks_each, context - 1, 1) for i in range(size)]
            yield StepShape(num_decodes=size, decode_context=size * context), groups
            size *= 2

    def _prefills(self) -> Iterator[tuple[StepShape, list[RowGroup]]]:
        for length in CHUNKS:
            if length <= self._longest:
                yield StepShape().with_chunk(0, length), [self._group(0, 0, length)]

    def _group(self, first_block: int, start: int, num_tokens: int) -> RowGroup:
        num_blocks = -(-(start + num_tokens) // self._model.block_size)
        return RowGroup(
            token_ids=[1] * num_tokens,
            start_position=start,
            blocks=range(first_block, first_block + num_blocks),
            num_logits=1,
            is_prompt=num_tokens > 1,
        )
