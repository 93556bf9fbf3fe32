"""What waits to be released of one answer, and what leaves of it."""

from __future__ import annotations

from collections import deque
from typing import Protocol

import msgspec


# One for every token: a frozen dataclass takes ten times as long (see ``gateway.stream.entries``).
class Departure(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """What leaves now as one event: ``num_texts`` pieces of text, usually one.

    ``pace_s`` is announced with it: the gap that the reader should expect after it; None when no
    pace is kept. ``lag_s`` is how long its oldest piece was held, ``underrun_s`` how late the
    source was against the gap announced before, 0.0 if it was not.
    """

    text: str
    num_texts: int
    pace_s: float | None
    lag_s: float
    underrun_s: float = 0.0


class Decider(Protocol):
    """Decides when each piece of one answer leaves. Pure: every method takes ``now``, seconds."""

    @property
    def reserve(self) -> Reserve: ...

    @property
    def tokens_per_s(self) -> float:
        """At which rate it releases, for the engine's scheduler."""

    def push(self, text: str, now: float) -> None:
        """A token came from the engine; ``text`` is what it made visible."""

    def finish(self, now: float) -> None:
        """No more will come."""

    def next_send_time(self, now: float) -> float | None:
        """When to call ``take``, which may be in the past; None while nothing is held."""

    def take(self, now: float) -> Departure:
        """What leaves now; something must be held."""


class Reserve:
    """Texts of one answer in order. The caller bounds it, by the engine's credit and ``num_chars``.

    ``num_released`` counts tokens of the engine, so that its scheduler can tell what is held.
    ``pieces`` has for each piece of text, oldest first, when it came, the text, and how many tokens
    came before it, also of those that made nothing visible; it is for reading.
    """

    __slots__ = ("_num_pushed", "num_chars", "num_released", "pieces")

    def __init__(self) -> None:
        self.num_chars = 0
        self.num_released = 0
        self.pieces: deque[tuple[float, str, int]] = deque()
        self._num_pushed = 0

    def __len__(self) -> int:
        return len(self.pieces)

    @property
    def oldest_at(self) -> float:
        """When the head arrived; there must be one."""
        return self.pieces[0][0]

    def push(self, text: str, now: float) -> None:
        num_before = self._num_pushed
        self._num_pushed = num_before + 1
        if text:
            self.pieces.append((now, text, num_before))
            self.num_chars += len(text)
        elif not self.pieces:
            self.num_released = self._num_pushed  # nobody waits for what cannot be seen

    def pop(self) -> str:
        """The oldest piece; there must be one."""
        pieces = self.pieces
        _, text, _ = pieces.popleft()
        self.num_chars -= len(text)
        self.num_released = pieces[0][2] if pieces else self._num_pushed
        return text

    def pop_some(self, num_texts: int) -> str:
        """The oldest pieces as one text; so many must be held."""
        return "".join([self.pop() for _ in range(num_texts)])

    def check_integrity(self) -> None:
        """Assert the sums; tests call it after every step."""
        texts = [text for _, text, _ in self.pieces]
        assert all(texts)
        assert self.num_chars == sum(map(len, texts))
        assert self.num_released + len(texts) <= self._num_pushed
