"""Which ranges of a shared memory are in use (pure)."""

from __future__ import annotations

from bisect import bisect_left, insort
from typing import NamedTuple

ALIGNMENT = 64  # bytes; a cache line
NO_GENERATION = 0


class Extent(NamedTuple):
    """A reserved range; ``generation`` tells its users apart from later users of the range."""

    offset: int
    size: int
    generation: int


class ExtentAllocator:
    """First-fit allocation over ``capacity`` bytes; neighbours in the free list are merged.

    First fit keeps reusing the low addresses, so pages that were never needed are never touched.
    """

    def __init__(self, capacity: int) -> None:
        self._capacity = capacity
        self._free: list[tuple[int, int]] = [(0, capacity)] if capacity else []  # offset, size
        self._used: dict[int, Extent] = {}
        self._generation = NO_GENERATION

    @property
    def used_bytes(self) -> int:
        return sum(extent.size for extent in self._used.values())

    def try_reserve(self, size: int) -> Extent | None:
        """The lowest free range of ``size`` bytes (a multiple of ``ALIGNMENT``), or None."""
        if size < 1 or size % ALIGNMENT:
            raise ValueError(f"size must be a positive multiple of {ALIGNMENT}, got {size}")
        for index, (offset, free) in enumerate(self._free):
            if free < size:
                continue
            if free == size:
                del self._free[index]
            else:
                self._free[index] = (offset + size, free - size)
            self._generation += 1
            extent = Extent(offset, size, self._generation)
            self._used[offset] = extent
            return extent
        return None

    def release(self, extent: Extent) -> None:
        """Give a range back.

        Raises:
            ValueError: it is not reserved (or no longer, or by somebody else).
        """
        if self._used.get(extent.offset) != extent:
            raise ValueError(f"not reserved: {extent}")
        del self._used[extent.offset]
        start, end = extent.offset, extent.offset + extent.size
        index = bisect_left(self._free, (start, 0))
        if index < len(self._free) and self._free[index][0] == end:
            end += self._free.pop(index)[1]
        if index > 0 and sum(self._free[index - 1]) == start:
            start = self._free.pop(index - 1)[0]
        insort(self._free, (start, end - start))

    def check_integrity(self) -> None:
        """Assert that used and free ranges tile the capacity and that free ones are merged."""
        ranges = [(offset, size, True) for offset, size in self._free]
        ranges += [(extent.offset, extent.size, False) for extent in self._used.values()]
        end, was_free = 0, False
        for offset, size, is_free in sorted(ranges):
            assert offset == end, f"gap or overlap at {end}: {sorted(ranges)}"
            assert size > 0, f"empty range at {offset}"
            assert not (is_free and was_free), f"unmerged neighbours at {offset}"
            end, was_free = offset + size, is_free
        assert end == self._capacity, f"{end} of {self._capacity} bytes accounted for"
