"""What the worker is to be told: withdrawn prompts, prompts, how far their readers are."""

from __future__ import annotations

import asyncio
from collections import OrderedDict
from typing import NamedTuple, Protocol

from engine.llm.messages import CancelKeys, Down, Release, ReleaseTable
from engine.llm.prompts import Prompt
from engine.llm.suspects import Suspects

RELEASE_INTERVAL_S = 0.05


class Link(Protocol):
    """The way to a worker, if there is one."""

    @property
    def can_send(self) -> bool:
        """A worker is ready and its socket takes messages."""

    def send(self, message: Down) -> None: ...


class Loss(NamedTuple):
    """What a worker held when it died, oldest first, and which of that is known to have killed."""

    keys: list[int]
    convicted: int | None


class Outbound:
    """Sends at the end of the loop's turn, and no faster than the worker reads.

    A prompt that is withdrawn before it was sent is never sent; those withdrawn later go in one
    message per turn. Bounds: all maps hold unanswered prompts only, except the cancels, which are
    at most as many as prompts were sent since the last flush that the socket took.
    """

    def __init__(self, link: Link) -> None:
        self._link = link
        self._fresh: OrderedDict[int, Prompt] = OrderedDict()
        self._suspects = Suspects()
        self._held: set[int] = set()  # with the worker and unanswered
        self._cancels: list[int] = []
        self._releases: dict[int, Release] = {}
        self._flush_handle: asyncio.Handle | None = None
        self._release_timer: asyncio.TimerHandle | None = None

    @property
    def num_unsent(self) -> int:
        return len(self._fresh) + self._suspects.num_waiting

    @property
    def num_held(self) -> int:
        return len(self._held)

    def add(self, prompt: Prompt) -> None:
        self._fresh[prompt.key] = prompt
        self.schedule_flush()

    def add_suspect(self, prompt: Prompt) -> None:
        """A prompt whose worker died, to be tried again."""
        self._held.discard(prompt.key)
        self._suspects.add(prompt)
        self.schedule_flush()

    def withdraw(self, key: int) -> None:
        """Nobody waits for the answer any more; keys that the worker is done with are ignored."""
        self._fresh.pop(key, None)
        self._suspects.remove(key)
        self._releases.pop(key, None)
        if key in self._held:
            self._held.remove(key)
            self._cancels.append(key)
        self.schedule_flush()

    def note_first_token(self, key: int) -> None:
        self._suspects.remove(key)
        self.schedule_flush()

    def settle(self, key: int) -> None:
        """The worker is done with it."""
        self._held.discard(key)
        self._suspects.remove(key)

    def note_death(self) -> Loss:
        """The worker is gone. Each key of the loss is to be settled or added as a suspect."""
        self._cancels.clear()
        self._releases.clear()
        return Loss(sorted(self._held), self._suspects.note_death())

    def schedule_flush(self) -> None:
        if self._flush_handle is None:
            self._flush_handle = asyncio.get_running_loop().call_soon(self._flush)

    def _flush(self) -> None:
        self._flush_handle = None
        if self._cancels and self._link.can_send:
            self._link.send(CancelKeys(tuple(self._cancels)))
            self._cancels.clear()
        now = asyncio.get_running_loop().time()
        while self._link.can_send and (prompt := self._take_next()) is not None:
            prompt.bound_at = now
            self._held.add(prompt.key)
            self._link.send(prompt.submit_message())

    def _take_next(self) -> Prompt | None:
        suspect = self._suspects.take()
        if suspect is not None or not self._fresh:
            return suspect
        return self._fresh.popitem(last=False)[1]

    # the release table

    def note_release(self, key: int, released: int, tokens_per_s: float) -> None:
        """Told to the worker within ``RELEASE_INTERVAL_S``, all that changed in one message."""
        loop = asyncio.get_running_loop()
        if key in self._held:
            at_us = round(loop.time() * 1e6)
            self._releases[key] = Release(key, released, tokens_per_s, at_us)
            if self._release_timer is None:
                self._release_timer = loop.call_later(RELEASE_INTERVAL_S, self._send_releases)

    def _send_releases(self) -> None:
        self._release_timer = None
        if self._releases and self._link.can_send:
            self._link.send(ReleaseTable(tuple(self._releases.values())))
            self._releases.clear()
        elif self._releases:
            loop = asyncio.get_running_loop()
            self._release_timer = loop.call_later(RELEASE_INTERVAL_S, self._send_releases)

    def close(self) -> None:
        """Send nothing more; call it when every prompt is answered."""
        for handle in (self._flush_handle, self._release_timer):
            if handle is not None:
                handle.cancel()
