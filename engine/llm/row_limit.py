"""How many token rows a step may have after one did not fit into memory."""

from __future__ import annotations

import logging

import torch

logger = logging.getLogger(__name__)

SHRINK_TO = 0.8
GROW_EVERY = 64  # steps that fitted, until a quarter more is tried


class RowLimit:
    """``max_rows`` is None until a step ran out of memory, then 80 % of what it had; it grows
    back step by step, and is None again once a step of that size could be tried anew."""

    def __init__(self) -> None:
        self.max_rows: int | None = None
        self._failed_rows = 0
        self._num_fitted = 0

    def try_shrink(self, num_rows: int) -> bool:
        """A step of ``num_rows`` did not fit; False when it cannot get smaller."""
        if num_rows <= 1:
            return False
        self.max_rows = max(1, int(SHRINK_TO * num_rows))
        self._failed_rows = num_rows
        self._num_fitted = 0
        logger.warning("out of memory with %d token rows, now %d", num_rows, self.max_rows)
        return True

    def note_success(self) -> None:
        """A step fitted."""
        if self.max_rows is None:
            return
        self._num_fitted += 1
        if self._num_fitted % GROW_EVERY == 0:
            grown = max(self.max_rows + 1, int(self.max_rows / SHRINK_TO))
            self.max_rows = grown if grown < self._failed_rows else None


def is_out_of_memory(error: BaseException) -> bool:
    """torch tells it of a GPU by type, of the host only in words."""
    return isinstance(error, (torch.OutOfMemoryError, MemoryError)) or (
        isinstance(error, RuntimeError) and "can't allocate memory" in str(error)
    )
