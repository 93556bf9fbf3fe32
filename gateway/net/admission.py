"""How many connections there may be, which there are, and how they all end."""

from __future__ import annotations

import asyncio
import logging
import sys
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from gateway.errors import ProblemKind, RequestProblem
from gateway.net.connection import Connection
from gateway.net.ending import Ending
from gateway.net.traffic import Traffic
from gateway.net.write_turn import WriteTurn
from gateway.stream.network_state import NetworkState
from gateway.stream.output_budget import OutputBudget

logger = logging.getLogger(__name__)

RETRY_AFTER_MS = 2000
IDLE_POLL_S = 0.02


@dataclass(frozen=True, slots=True, kw_only=True)
class ConnectionStatistics:
    """Counters only grow; ``open`` and ``limit`` are gauges."""

    open: int
    limit: int
    accepted: int
    refused: int
    closed: dict[int, int]  # by close code; 1006: lost or aborted
    messages_in: int
    messages_out: int
    bytes_in: int
    bytes_out: int
    segments_out: int  # TCP segments with data
    segments_again: int
    networks: tuple[NetworkState, ...]  # of each that is open
    outboxes_relieved: int


class ConnectionTable:
    """All WebSocket connections of the process, at most ``max_connections``.

    A place is taken before the handshake is answered and given back when nothing is left of the
    connection, so a storm of handshakes is counted too. ``output_budget`` is for the outboxes of
    all of them together, in ``write_turn`` they send.
    """

    def __init__(self, max_connections: int, max_output_bytes: int = sys.maxsize) -> None:
        self.output_budget = OutputBudget(max_output_bytes)
        self.write_turn = WriteTurn()
        self._max_connections = max_connections
        self._num_places = 0
        self._connections: set[Connection] = set()
        self._is_closing = False
        self._accepted = 0
        self._refused = 0
        self._closed: Counter[int] = Counter()
        self._past = Traffic()
        self._empty = asyncio.Event()
        self._empty.set()

    def __iter__(self) -> Iterator[Connection]:
        return iter(tuple(self._connections))

    @contextmanager
    def place(self) -> Iterator[None]:
        """Hold a place for one connection.

        Raises:
            RequestProblem: all are taken, or the server is shutting down; with a time to retry.
        """
        if self._is_closing or self._num_places >= self._max_connections:
            self._refused += 1
            kind = ProblemKind.SHUTTING_DOWN if self._is_closing else ProblemKind.OVERLOADED
            raise RequestProblem(kind, "no place for a connection", retry_after_ms=RETRY_AFTER_MS)
        self._num_places += 1
        try:
            yield
        finally:
            self._num_places -= 1

    async def serve(self, connection: Connection) -> Ending:
        """Run the connection to its end and count it."""
        self._accepted += 1
        self._connections.add(connection)
        self._empty.clear()
        try:
            return await connection.run()
        finally:
            self._connections.discard(connection)
            self._past.add(connection.traffic)
            self._closed[int(connection.code)] += 1
            logger.debug("%s over: %s", connection.name, connection.traffic)
            if not self._connections:
                self._empty.set()

    def refuse_new(self) -> None:
        """From now on nobody gets a place."""
        self._is_closing = True

    def drain_all(self, deadline_ms: int) -> None:
        """Tell every client to go elsewhere."""
        for connection in self:
            connection.session.drain(deadline_ms)

    def give_up_all(self) -> None:
        """Tell every client that what is unanswered will not be answered any more."""
        for connection in self:
            connection.session.give_up()

    async def wait_idle(self, deadline: float) -> None:
        """Wait until nobody waits for anything, or ``deadline``."""
        loop = asyncio.get_running_loop()
        # Polled: it is a fact about many parts at once, and asked for once in a process's life.
        while not all(connection.is_idle for connection in self) and loop.time() < deadline:  # noqa: ASYNC110
            await asyncio.sleep(IDLE_POLL_S)

    def end_all(self, ending: Ending) -> None:
        for connection in self:
            connection.end(ending)

    def abort_all(self) -> None:
        for connection in self:
            connection.abort()

    async def wait_empty(self, deadline: float) -> bool:
        """Wait until every connection is over; False if some are left at ``deadline``."""
        try:
            async with asyncio.timeout_at(deadline):
                await self._empty.wait()
        except TimeoutError:
            return False
        return True

    def statistics(self) -> ConnectionStatistics:
        traffic = Traffic()
        traffic.add(self._past)
        for connection in self._connections:
            traffic.add(connection.traffic)
        return ConnectionStatistics(
            open=len(self._connections),
            limit=self._max_connections,
            accepted=self._accepted,
            refused=self._refused,
            closed=dict(self._closed),
            messages_in=traffic.messages_in,
            messages_out=traffic.messages_out,
            bytes_in=traffic.bytes_in,
            bytes_out=traffic.bytes_out,
            segments_out=traffic.segments_out,
            segments_again=traffic.segments_again,
            networks=tuple(connection.network for connection in self._connections),
            outboxes_relieved=self.output_budget.num_relieved,
        )
