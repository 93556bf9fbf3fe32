"""Which prompts of a worker that died are tried again, and in what company. Pure."""

from __future__ import annotations

from collections import OrderedDict

from engine.llm.prompts import Prompt

TOGETHER = 8


class Suspects:
    """Prompts that a worker held before their first token when it died: one may have killed it.

    At most ``TOGETHER`` of them are with the next worker at once; those that were lost again are
    then sent one at a time. So whichever kills is convicted at its third worker at the latest, and
    nobody is condemned for its company. Bounded by the engine's bound on prompts.
    """

    def __init__(self) -> None:
        self._waiting: OrderedDict[int, Prompt] = OrderedDict()
        self._lost_twice: OrderedDict[int, Prompt] = OrderedDict()
        self._out: set[int] = set()
        self._is_one_alone = False

    @property
    def num_waiting(self) -> int:
        return len(self._waiting) + len(self._lost_twice)

    def add(self, prompt: Prompt) -> None:
        """``prompt.losses`` says in what company it goes."""
        line = self._waiting if prompt.losses == 1 else self._lost_twice
        line[prompt.key] = prompt

    def take(self) -> Prompt | None:
        """The next to be sent; None while there is none, or enough are out."""
        line = self._lost_twice or self._waiting
        limit = 1 if self._lost_twice or self._is_one_alone else TOGETHER
        if not line or len(self._out) >= limit:
            return None
        self._is_one_alone = line is self._lost_twice
        key, prompt = line.popitem(last=False)
        self._out.add(key)
        return prompt

    def remove(self, key: int) -> None:
        """It has its first token, or nobody waits for it any more; unknown keys are ignored."""
        self._out.discard(key)
        self._is_one_alone = self._is_one_alone and bool(self._out)
        self._waiting.pop(key, None)
        self._lost_twice.pop(key, None)

    def note_death(self) -> int | None:
        """The worker is gone; returns the suspect that was its only one."""
        convicted = next(iter(self._out)) if len(self._out) == 1 else None
        self._out.clear()
        self._is_one_alone = False
        return convicted
