"""Look-ahead: guesses a sequence's next tokens from what it said before (pure).

Text repeats itself: names, quotations, code, lists. Where the last words occurred before, what
followed them then is guessed again; the model checks all guesses in one pass and keeps those that
it would have chosen itself, so the answer is the same with and without. A wrong guess costs a row
of the batch, so guessing gets shorter with each miss and pauses after several.
"""

from __future__ import annotations

from collections.abc import Iterable

GRAM_SIZES = (3, 2)  # longest first; a single word is followed by too many things
MIN_GUESSES = 2
MISSES_UNTIL_PAUSE = 2
FIRST_PAUSE = 8  # steps; doubled by each further pause, until a guess is right again
LONGEST_PAUSE = 128


class NgramIndex:
    """Where each run of 2 or 3 tokens occurred last, in one sequence.

    Holds at most ``capacity`` tokens and ``len(GRAM_SIZES)`` entries for each; what comes after
    that is no longer indexed and ``guess`` finds nothing.
    """

    def __init__(self, token_ids: Iterable[int], capacity: int) -> None:
        self._capacity = capacity
        self._is_full = False
        self._tokens: list[int] = []
        # Run of tokens -> index of the token that followed it. The run at the very end has no
        # follower yet and is not in here, so it never finds itself.
        self._followers: dict[tuple[int, ...], int] = {}
        self.extend(token_ids)

    def extend(self, token_ids: Iterable[int]) -> None:
        """Note the tokens that the sequence grew by."""
        tokens, followers = self._tokens, self._followers
        for token in token_ids:
            end = len(tokens)
            if end == self._capacity:
                self._is_full = True  # from here on the sequence's end is not in ``_tokens``
                return
            for size in GRAM_SIZES:
                if end >= size:
                    followers[tuple(tokens[end - size : end])] = end
            tokens.append(token)

    def guess(self, count: int) -> tuple[int, ...]:
        """``count`` tokens that may come next, or none.

        A run that occurred just before goes on into its own repetition: ``ababab`` guesses
        ``ab`` for ever.
        """
        tokens = self._tokens
        end = len(tokens)
        if count < 1 or self._is_full:
            return ()
        for size in GRAM_SIZES:
            at = self._followers.get(tuple(tokens[-size:])) if end >= size else None
            if at is not None:
                period = end - at
                return tuple(tokens[at + i % period] for i in range(count))
        return ()


class LookAhead:
    """How far one sequence looks ahead: 2 to ``longest`` guesses, by how the last ones did."""

    def __init__(self, index: NgramIndex, longest: int) -> None:
        self._index = index
        self._longest = longest
        self._length = longest
        self._misses = 0
        self._pause = FIRST_PAUSE
        self._paused_steps = 0

    def extend(self, token_ids: Iterable[int]) -> None:
        """Note the tokens that the sequence grew by."""
        self._index.extend(token_ids)

    def guess(self, room: int) -> tuple[int, ...]:
        """At most ``room`` guesses for the coming step; called once per step."""
        if self._paused_steps > 0:
            self._paused_steps -= 1
            return ()
        return self._index.guess(min(room, self._length))

    def note_result(self, guessed: int, right: int) -> None:
        """Learn from a step: ``right`` of the ``guessed`` tokens were kept."""
        if guessed == 0:
            return
        if right == guessed:
            self._length = min(self._longest, self._length + 1)
        else:
            self._length = max(min(MIN_GUESSES, self._longest), right)
        if right > 0:
            self._misses, self._pause = 0, FIRST_PAUSE
            return
        self._misses += 1
        if self._misses >= MISSES_UNTIL_PAUSE:
            self._misses = 0
            self._paused_steps = self._pause
            self._pause = min(LONGEST_PAUSE, 2 * self._pause)


def count_right(guesses: tuple[int, ...], chosen: list[int]) -> int:
    """How many guesses the model would have chosen itself, from the first on.

    ``chosen[i]`` is its choice after the i-th guess (0: before any), each made with that
    position's own randomness; so ``chosen[: count_right(…) + 1]`` is what single steps had given.
    """
    right = 0
    while right < len(guesses) and guesses[right] == chosen[right]:
        right += 1
    return right
