"""How many bytes the whole process may hold for one purpose."""

from __future__ import annotations


class ByteBudget:
    """Bytes are taken before they are held and given back after; never more than ``limit``."""

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self.used = 0

    def try_take(self, num_bytes: int) -> bool:
        """Whether there was room; if not, nothing was taken."""
        if self.used + num_bytes > self._limit:
            return False
        self.used += num_bytes
        return True

    def give_back(self, num_bytes: int) -> None:
        """Raises ValueError for more than was taken, and changes nothing."""
        if num_bytes > self.used:
            raise ValueError(f"{num_bytes} bytes given back, {self.used} were taken")
        self.used -= num_bytes
