"""How long a worker that owes an answer may be silent before it counts as hung (pure)."""

from __future__ import annotations

from collections import deque

_WINDOW = 64  # silences that the limit looks back on
_TRUSTED = 16  # fewer say too little
_FACTOR = 20.0  # a machine under load is several times slower, not twenty times


class StallLimit:
    """Follows the model: ``_FACTOR`` times the silence that nine in ten batches keep.

    Never below ``floor_s``, because a busy machine or a first run of a new shape is no hang, and
    never above ``ceiling_s``, which also holds until enough was seen.
    """

    def __init__(self, floor_s: float, ceiling_s: float) -> None:
        self._floor_s = min(floor_s, ceiling_s)
        self._ceiling_s = ceiling_s
        self._silences_s: deque[float] = deque(maxlen=_WINDOW)

    def observe(self, silence_s: float) -> None:
        """A batch ran ``silence_s`` after the worker had last said something, or was given it."""
        self._silences_s.append(silence_s)

    def limit_s(self) -> float:
        """The limit for the batch that runs now. Sorts a window: ask a few times a second."""
        if len(self._silences_s) < _TRUSTED:
            return self._ceiling_s
        usual_s = sorted(self._silences_s)[int(0.9 * len(self._silences_s))]
        return min(self._ceiling_s, max(self._floor_s, _FACTOR * usual_s))
