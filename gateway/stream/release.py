"""What waits to be released of one answer, and what leaves of it."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Protocol


@dataclass(slots=True)
class Held:
    """A piece of text that the engine said at once.

    ``num_generated`` tokens of the engine led to it: itself, and those around it that made nothing
    visible.
    """

    text: str
    arrived_at: float
    num_generated: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Departure:
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
    """

    def __init__(self) -> None:
        self.num_chars = 0
        self.num_released = 0
        self._held: deque[Held] = deque()

    def __len__(self) -> int:
        return len(self._held)

    @property
    def oldest_at(self) -> float:
        """When the head arrived; there must be one."""
        return self._held[0].arrived_at

    def arrivals(self) -> Iterator[float]:
        """When each piece arrived, oldest first."""
        return (held.arrived_at for held in self._held)

    def push(self, text: str, now: float) -> None:
        if text:
            self._held.append(Held(text, now, 1))
            self.num_chars += len(text)
        elif self._held:
            self._held[-1].num_generated += 1
        else:
            self.num_released += 1  # nobody waits for what cannot be seen

    def pop(self, num_texts: int) -> str:
        """The oldest pieces as one text; so many must be held."""
        taken = [self._held.popleft() for _ in range(num_texts)]
        self.num_released += sum(held.num_generated for held in taken)
        text = "".join(held.text for held in taken)
        self.num_chars -= len(text)
        return text

    def check_integrity(self) -> None:
        """Assert the sums; tests call it after every step."""
        assert self.num_chars == sum(len(held.text) for held in self._held)
