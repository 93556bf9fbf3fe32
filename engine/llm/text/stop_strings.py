"""Where an answer ends before one of its stop strings (pure)."""

from __future__ import annotations

from collections.abc import Sequence


class StopStrings:
    """Passes text through until a stop string is complete; the text before it is kept.

    The stop that completes first wins, whatever the chunking; of several that complete with the
    same character, the longest. Only a suffix that is a proper prefix of a stop is held back, so
    text that cannot become one is never delayed.

    One Knuth-Morris-Pratt automaton per stop: O(1) amortised per character and stop.
    """

    def __init__(self, stops: Sequence[str]) -> None:
        self.found: str | None = None
        self._automata = [_Automaton(stop) for stop in stops]
        self._held = ""

    def push(self, text: str) -> str:
        """The part of the text that is certain to come before any stop."""
        if self.found is not None:
            return ""
        if not self._automata:
            return text
        pending = self._held + text
        for index, char in enumerate(text, start=len(self._held) + 1):
            complete = [automaton.stop for automaton in self._automata if automaton.step(char)]
            if complete:
                self.found = max(complete, key=len)
                self._held = ""
                return pending[: index - len(self.found)]
        num_held = max(automaton.num_matched for automaton in self._automata)
        split_at = len(pending) - num_held
        self._held = pending[split_at:]
        return pending[:split_at]

    def finish(self) -> str:
        """The text has ended: what was held back was no stop."""
        held, self._held = self._held, ""
        return held


class _Automaton:
    """``num_matched`` is the longest prefix of ``stop`` that the text so far ends with."""

    __slots__ = ("_borders", "num_matched", "stop")

    def __init__(self, stop: str) -> None:
        self.stop = stop
        self.num_matched = 0
        self._borders = _borders(stop)

    def step(self, char: str) -> bool:
        """Whether the stop is complete with this character; then the automaton is spent."""
        while self.num_matched and self.stop[self.num_matched] != char:
            self.num_matched = self._borders[self.num_matched - 1]
        if self.stop[self.num_matched] == char:
            self.num_matched += 1
        return self.num_matched == len(self.stop)


def _borders(stop: str) -> list[int]:
    """For each prefix: the length of its longest proper prefix that is also its suffix."""
    borders = [0] * len(stop)
    length = 0
    for index in range(1, len(stop)):
        while length and stop[index] != stop[length]:
            length = borders[length - 1]
        if stop[index] == stop[length]:
            length += 1
        borders[index] = length
    return borders
