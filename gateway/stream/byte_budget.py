"""How many bytes are held for one purpose, and how many may be."""

from __future__ import annotations


class ByteMeter:
    """Counts bytes held, here and in the whole that this is a part of, which is part of nothing."""

    __slots__ = ("_whole", "used")

    def __init__(self, whole: ByteMeter | None = None) -> None:
        self.used = 0
        self._whole = whole

    def add(self, num_bytes: int) -> None:
        """Some more are held, or (negative) fewer."""
        self.used += num_bytes
        if self._whole is not None:
            self._whole.used += num_bytes

    def leave(self) -> None:
        """Stand alone from now on; idempotent."""
        if self._whole is not None:
            self._whole.add(-self.used)
            self._whole = None


class ByteBudget:
    """For the whole process: bytes are taken before they are held and given back after.

    Never more than ``limit``.
    """

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
