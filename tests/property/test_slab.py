"""The extent allocator against a model: a byte map that says who owns what."""

from __future__ import annotations

import pytest
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from engine.workers.extents import ALIGNMENT, Extent, ExtentAllocator
from engine.workers.slab import Slab, SlabReader, Span

pytestmark = pytest.mark.property

CELLS = 32


class AllocatorMachine(RuleBasedStateMachine):
    """``owners[i]`` is the generation that holds the i-th cell of ``ALIGNMENT`` bytes, or 0."""

    def __init__(self) -> None:
        super().__init__()
        self.allocator = ExtentAllocator(CELLS * ALIGNMENT)
        self.owners = [0] * CELLS
        self.live: list[Extent] = []
        self.last_generation = 0

    def first_fit(self, cells: int) -> int | None:
        for start in range(CELLS - cells + 1):
            if not any(self.owners[start : start + cells]):
                return start
        return None

    @rule(cells=st.integers(1, CELLS))
    def reserve(self, cells: int) -> None:
        start = self.first_fit(cells)
        extent = self.allocator.try_reserve(cells * ALIGNMENT)
        if start is None:
            assert extent is None
            return
        assert extent is not None
        assert (extent.offset, extent.size) == (start * ALIGNMENT, cells * ALIGNMENT)
        assert extent.generation > self.last_generation
        self.last_generation = extent.generation
        self.owners[start : start + cells] = [extent.generation] * cells
        self.live.append(extent)

    @precondition(lambda self: self.live)
    @rule(data=st.data())
    def release(self, data: st.DataObject) -> None:
        extent = self.live.pop(data.draw(st.integers(0, len(self.live) - 1)))
        self.allocator.release(extent)
        self.owners = [0 if owner == extent.generation else owner for owner in self.owners]
        with pytest.raises(ValueError, match="not reserved"):
            self.allocator.release(extent)

    @invariant()
    def sums_agree(self) -> None:
        self.allocator.check_integrity()
        assert self.allocator.used_bytes == ALIGNMENT * sum(map(bool, self.owners))


TestAllocator = AllocatorMachine.TestCase


class SlabMachine(RuleBasedStateMachine):
    """Items written and released in any order: each live one reads back, no released one does."""

    def __init__(self) -> None:
        super().__init__()
        self.slab = Slab(4096)
        self.reader = SlabReader(self.slab.fd)
        self.live: list[tuple[Extent, Span, tuple[bytes, bytes, bytes]]] = []
        self.released: list[Span] = []

    @rule(payload=st.binary(max_size=900), meta=st.binary(max_size=90), options=st.binary())
    def write(self, payload: bytes, meta: bytes, options: bytes) -> None:
        written = self.slab.try_write(payload, meta, options)
        if written is not None:
            self.live.append((*written, (payload, meta, options)))

    @precondition(lambda self: self.live)
    @rule(data=st.data())
    def release(self, data: st.DataObject) -> None:
        extent, span, _ = self.live.pop(data.draw(st.integers(0, len(self.live) - 1)))
        self.slab.release(extent)
        self.released.append(span)

    @invariant()
    def live_items_read_back(self) -> None:
        for _, span, parts in self.live:
            assert self.reader.is_valid(span)
            payload = bytes(self.reader.payload(span))
            assert (payload, self.reader.meta(span), self.reader.options(span)) == parts

    @invariant()
    def released_items_are_known_to_be_gone(self) -> None:
        assert not any(self.reader.is_valid(span) for span in self.released)

    def teardown(self) -> None:
        self.slab.close()


TestSlab = SlabMachine.TestCase
