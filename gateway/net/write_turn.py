"""One callback of the loop for all connections that have something to send."""

from __future__ import annotations

import asyncio
from typing import Protocol


class Writer(Protocol):
    """A connection, as the turn sees it."""

    def flush(self) -> None:
        """Send what waits; returns at once and never raises."""


class WriteTurn:
    """Lets every connection that has joined flush once, in the loop's next turn.

    So a token does not pay for a callback of its own, with its handle and its copy of the context.
    Bounded by the connections, which join once per turn. Belongs to the loop's thread.
    """

    def __init__(self) -> None:
        self._waiting: list[Writer] = []

    def join(self, writer: Writer) -> None:
        if not self._waiting:
            asyncio.get_running_loop().call_soon(self._run)
        self._waiting.append(writer)

    def _run(self) -> None:
        waiting, self._waiting = self._waiting, []  # who joins meanwhile is for the next turn
        for writer in waiting:
            writer.flush()
