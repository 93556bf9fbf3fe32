"""Whole answers over HTTP, under the rules of the WebSocket's writer."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Iterator

from aiohttp import web
from aiohttp.typedefs import Handler

from gateway.net.send_backlog import SendBacklog
from gateway.net.socket_options import limit_write_buffer
from gateway.net.tcp_info import read_transport_path
from gateway.stream.byte_budget import ByteMeter
from gateway.stream.output_budget import OutputBudget

# The buffers of two kernels take these; beyond them an answer waits here for its reader.
SMALL_BYTES = 64 * 1024
COPIES = 2  # the response's, and behind its head that of the transport

logger = logging.getLogger(__name__)


class Answers:
    """Writes what handlers return; iterating gives those that are on their way.

    What waits for a reader counts in ``budget`` with the outboxes: over it, whoever holds most
    loses its connection. So does a reader that takes nothing for ``send_timeout_s``, at one of the
    looks, of which there is to be one a second. Small answers pass by.
    """

    def __init__(self, budget: OutputBudget, *, send_timeout_s: float) -> None:
        self._budget = budget
        self._send_timeout_s = send_timeout_s
        self._open: set[_Answer] = set()

    def __iter__(self) -> Iterator[_Answer]:
        return iter(tuple(self._open))

    @web.middleware
    async def middleware(self, request: web.Request, handler: Handler) -> web.StreamResponse:
        response = await handler(request)
        body = response.body if isinstance(response, web.Response) else None
        if isinstance(body, bytes) and len(body) > SMALL_BYTES and request.transport is not None:
            backlog = SendBacklog(self._send_timeout_s)
            answer = _Answer(request.path, request.transport, self._budget, backlog)
            self._open.add(answer)
            try:
                answer.begin(COPIES * len(body))
                # Until all but what fits into a small buffer is with the kernel; a connection that
                # is aborted cancels this.
                await response.prepare(request)
                await response.write_eof()
            finally:
                answer.end()
                self._open.discard(answer)
        return response


class _Answer:
    """One on its way to its reader."""

    def __init__(
        self,
        path: str,
        transport: asyncio.WriteTransport,
        budget: OutputBudget,
        backlog: SendBacklog,
    ) -> None:
        self._path = path
        self._transport = transport
        self._budget = budget
        self._meter = ByteMeter(budget.meter)
        self._backlog = backlog

    @property
    def size_bytes(self) -> int:
        return self._meter.used

    def begin(self, num_bytes: int) -> None:
        limit_write_buffer(self._transport)
        self._meter.add(num_bytes)
        self._budget.join(self)
        if self._budget.is_over:
            self._budget.make_room()

    def end(self) -> None:
        """Idempotent."""
        self._budget.leave(self)
        self._meter.leave()

    def sample_network(self) -> None:
        """Give up a reader that has had its time."""
        sample = read_transport_path(self._transport)
        now = asyncio.get_running_loop().time()
        if sample is not None and self._backlog.is_overdue(sample, now):
            self._cut_off("nothing read in time")

    def relieve(self) -> None:
        """Its connection holds most of all."""
        self._cut_off("too much waits for readers")
        self.end()

    def _cut_off(self, reason: str) -> None:
        logger.info("%s: %s, connection ended", self._path, reason)
        self._transport.abort()
