"""The block pool against a model that remembers which tokens each block was written with."""

from __future__ import annotations

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from engine.llm.blocks import BlockPool
from engine.llm.sequence import Sequence

pytestmark = pytest.mark.property

BLOCK_SIZE = 3
TOKENS = st.integers(0, 1)


class BlockMachine(RuleBasedStateMachine):
    """``written`` is the model: the tenant and all tokens up to the end of each full block."""

    def __init__(self) -> None:
        super().__init__()
        self.live: list[Sequence] = []
        self.written: dict[int, tuple[str, tuple[int, ...]]] = {}

    @initialize(num_blocks=st.integers(1, 10))
    def build(self, num_blocks: int) -> None:
        self.pool = BlockPool(num_blocks, BLOCK_SIZE)

    @rule(prompt=st.lists(TOKENS, min_size=1, max_size=14), tenant=st.sampled_from(["", "t"]))
    def start(self, prompt: list[int], tenant: str) -> None:
        pool = self.pool
        sequence = Sequence(key=0, prompt_ids=prompt, max_tokens=50, tenant=tenant)
        prefix = pool.match_prefix(sequence)
        assert len(prefix) * BLOCK_SIZE < sequence.num_tokens
        for index, block in enumerate(prefix):
            expected = (tenant, sequence.tokens(0, (index + 1) * BLOCK_SIZE))
            assert self.written[block] == expected, "a block of another prefix"
        fresh = pool.blocks_for(sequence.num_tokens) - len(prefix)
        if fresh + pool.num_unowned(prefix) > pool.num_available:
            return
        pool.adopt_prefix(sequence, prefix)
        assert pool.try_grow(sequence, sequence.num_tokens)
        self.live.append(sequence)

    @precondition(lambda self: self.live)
    @rule(data=st.data(), num_tokens=st.integers(1, 6))
    def compute(self, data: st.DataObject, num_tokens: int) -> None:
        sequence = self.pick(data)
        before = sequence.num_computed
        sequence.num_computed = min(before + num_tokens, sequence.num_tokens)
        for index in range(before // BLOCK_SIZE, sequence.num_computed // BLOCK_SIZE):
            tokens = sequence.tokens(0, (index + 1) * BLOCK_SIZE)
            self.written[sequence.blocks[index]] = (sequence.tenant, tokens)
        self.pool.publish(sequence, before)

    @precondition(lambda self: self.live)
    @rule(data=st.data(), token=TOKENS)
    def generate(self, data: st.DataObject, token: int) -> None:
        sequence = self.pick(data)
        available = self.pool.num_available
        missing = self.pool.missing_blocks(sequence, sequence.num_tokens + 1)
        assert self.pool.try_grow(sequence, sequence.num_tokens + 1) == (missing <= available)
        if missing <= available:
            sequence.output_ids.append(token)
            assert self.pool.num_available == available - missing

    @precondition(lambda self: self.live)
    @rule(data=st.data())
    def end(self, data: st.DataObject) -> None:
        sequence = self.pick(data)
        available = self.pool.num_available
        exclusive = self.pool.num_exclusive(sequence)
        self.pool.release(sequence)
        assert self.pool.num_available == available + exclusive
        self.live.remove(sequence)

    @invariant()
    def sums_agree(self) -> None:
        if hasattr(self, "pool"):
            self.pool.check_integrity(self.live)

    def teardown(self) -> None:
        for sequence in self.live:
            self.pool.release(sequence)
        if hasattr(self, "pool"):
            self.pool.check_integrity([])
            assert self.pool.num_owned == 0

    def pick(self, data: st.DataObject) -> Sequence:
        return self.live[data.draw(st.integers(0, len(self.live) - 1))]


TestBlocks = BlockMachine.TestCase
TestBlocks.settings = settings(max_examples=100, stateful_step_count=40, deadline=None)
