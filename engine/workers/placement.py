"""Where a pool's items lie in its slab: one extent per key, kept until the item is answered."""

from __future__ import annotations

from engine.batching.executor import Work
from engine.errors import InvalidInput, StartupError
from engine.workers.extents import Extent
from engine.workers.slab import Slab, Span, extent_bytes

MAX_META_BYTES = 64 * 1024  # meta and options of one item together


class Placement:
    """Owns the slab; ``slab_bytes`` is raised to what one item of the largest size needs.

    ``is_short`` tells that the last item found no room, until something is released.
    """

    def __init__(self, model: str, *, slab_bytes: int, max_item_bytes: int) -> None:
        """Raises ``StartupError`` when the machine has no such memory."""
        self._max_item_bytes = max_item_bytes
        self._slots: dict[int, tuple[Extent, Span]] = {}  # by key
        self.is_short = False
        size = max(slab_bytes, extent_bytes(max_item_bytes + MAX_META_BYTES))
        try:
            self._slab = Slab(size)
        except OSError as error:
            raise StartupError(
                f"model {model}: no {size} bytes of shared memory for its items "
                f"({error.strerror}); lower slab_bytes or free memory"
            ) from error

    @property
    def fd(self) -> int:
        """The memory file, for workers to inherit."""
        return self._slab.fd

    @property
    def used_bytes(self) -> int:
        return self._slab.used_bytes

    def check_size(self, work: Work) -> InvalidInput | None:
        """Why the item can never be placed, or None."""
        size = memoryview(work.payload).nbytes
        if size > self._max_item_bytes:
            limit = self._max_item_bytes
            return InvalidInput(f"the payload has {size} bytes, max_item_bytes is {limit}")
        size = len(work.meta) + len(work.options)
        if size > MAX_META_BYTES:
            return InvalidInput(f"meta and options: {size} bytes, the limit is {MAX_META_BYTES}")
        return None

    def try_place(self, work: Work) -> Span | None:
        """Copy an item in, unless its extent is still there from a lost attempt."""
        if work.key not in self._slots:
            slot = self._slab.try_write(work.payload, work.meta, work.options)
            if slot is None:
                self.is_short = True
                return None
            self._slots[work.key] = slot
        return self._slots[work.key][1]

    def release(self, key: int) -> bool:
        """Free an item's extent; False for unknown keys."""
        slot = self._slots.pop(key, None)
        if slot is None:
            return False
        self._slab.release(slot[0])
        return True

    def check_integrity(self) -> None:
        """Assert that extents and known items agree."""
        self._slab.check_integrity()
        used = sum(extent.size for extent, _ in self._slots.values())
        assert used == self._slab.used_bytes, f"{used} != {self._slab.used_bytes}"

    def close(self) -> None:
        self._slots.clear()
        self._slab.close()
