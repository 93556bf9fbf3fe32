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
    ``arrivals`` says when each piece came, oldest first; it is for reading.
    """

    # Parallel queues: with an object per piece a token costs 1 us more, of about 20.
    __slots__ = ("_texts", "arrivals", "num_chars", "num_released")

    def __init__(self) -> None:
        self.num_chars = 0
        self.num_released = 0
        self.arrivals: deque[float] = deque()
        # One per token of the engine, also of those that made nothing visible; the first did.
        self._texts: deque[str] = deque()

    def __len__(self) -> int:
        return len(self.arrivals)

    @property
    def oldest_at(self) -> float:
        """When the head arrived; there must be one."""
        return self.arrivals[0]

    def push(self, text: str, now: float) -> None:
        if text:
            self.arrivals.append(now)
            self._texts.append(text)
            self.num_chars += len(text)
        elif self._texts:
            self._texts.append(text)
        else:
            self.num_released += 1  # nobody waits for what cannot be seen

    def pop(self) -> str:
        """The oldest piece; there must be one."""
        self.arrivals.popleft()
        texts = self._texts
        text = texts.popleft()
        self.num_chars -= len(text)
        self.num_released += 1
        while texts and not texts[0]:
            texts.popleft()
            self.num_released += 1
        return text

    def pop_some(self, num_texts: int) -> str:
        """The oldest pieces as one text; so many must be held."""
        return "".join([self.pop() for _ in range(num_texts)])

    def check_integrity(self) -> None:
        """Assert the sums; tests call it after every step."""
        assert self.num_chars == sum(map(len, self._texts))
        assert len(self.arrivals) == sum(map(bool, self._texts))
        assert not self._texts or self._texts[0]
