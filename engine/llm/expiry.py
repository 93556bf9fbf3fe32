"""Expires prompts at their absolute deadline, whatever the worker does."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping

from engine.batching.deadlines import DeadlineHeap
from engine.llm.prompts import Prompt


class Expiry:
    """One loop timer over the deadlines of the ``live`` prompts; ``expire`` must answer its prompt.

    Runs on the event loop's thread.
    """

    def __init__(self, live: Mapping[int, Prompt], expire: Callable[[Prompt], None]) -> None:
        self._live = live
        self._expire = expire
        self._deadlines = DeadlineHeap(live)
        self._timer: asyncio.Handle | None = None
        self._due_at = 0.0

    def watch(self, prompt: Prompt) -> None:
        """Without a deadline it never expires; one that has passed is told in the next turn."""
        self._deadlines.add(prompt)
        self._set_timer()

    def close(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _on_timer(self) -> None:
        # uvloop may fire half a millisecond early: what was due then is due now, else it spins.
        now = max(self._due_at, asyncio.get_running_loop().time())
        self._timer = None
        while (key := self._deadlines.pop_due(now)) is not None:
            self._expire(self._live[key])
        self._set_timer()

    def _set_timer(self) -> None:
        """Never later than the nearest deadline; one that fires too early only looks again."""
        due_at = self._deadlines.nearest()
        if due_at is None:
            return
        if self._timer is not None:
            if self._due_at <= due_at:
                return
            self._timer.cancel()
        self._due_at = due_at
        self._timer = asyncio.get_running_loop().call_at(due_at, self._on_timer)
