"""Statistics of the last few samples of something that changes. Pure."""

from __future__ import annotations

from collections import deque

WINDOW = 15  # samples that an estimate looks back on


class Samples:
    """Median and ninth decile of the last ``WINDOW`` values.

    ``prior`` fills the window at first, so that one odd value at the start moves neither; without
    one, both are ``default`` until the first value.
    """

    def __init__(self, *, default: float, prior: float | None = None) -> None:
        self._values: deque[float] = deque(maxlen=WINDOW)
        if prior is not None:
            self._values.extend([prior] * WINDOW)
        self.median = default if prior is None else prior
        self.high = self.median  # nine in ten values are at most this

    def __len__(self) -> int:
        return len(self._values)

    def add(self, value: float) -> None:
        self._values.append(value)
        ordered = sorted(self._values)
        self.median = ordered[len(ordered) // 2]
        self.high = ordered[int(0.9 * len(ordered))]
