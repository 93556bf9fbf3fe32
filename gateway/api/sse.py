"""Server-sent events to one reader, under the rules of the WebSocket's writer."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterable, Mapping
from contextlib import asynccontextmanager

from aiohttp import web

from gateway.net.socket_options import limit_write_buffer

COMMENT = b": keep-alive\n\n"
DONE = b"[DONE]"
WRITE_BYTES = 16 * 1024  # events that wait together leave together, up to about this much
HEADERS = {
    "Content-Type": "text/event-stream; charset=utf-8",
    "Cache-Control": "no-cache",
    "X-Accel-Buffering": "no",  # or a proxy collects what should flow
}


class ReaderStalled(ConnectionError):
    """The reader took nothing in time; its connection is gone."""


class EventStream:
    """An answer that is a stream of events: ``start``, ``send``…, ``finish``.

    What is sent next is chosen once there is room, and each wait for room is bounded: after
    ``send_timeout_s`` the connection is aborted and ``ReaderStalled`` raised. A reader that leaves
    cancels the handler's task.
    """

    def __init__(self, request: web.Request, *, send_timeout_s: float) -> None:
        self._request = request
        self._send_timeout_s = send_timeout_s
        self.response = web.StreamResponse(headers=HEADERS)

    async def start(self, headers: Mapping[str, str]) -> None:
        self.response.headers.update(headers)
        if self._request.transport is not None:
            limit_write_buffer(self._request.transport)
        await self.response.prepare(self._request)

    async def send(self, events: Iterable[bytes]) -> None:
        """Send each as ``data``, in order."""
        waiting = bytearray()
        for event in events:
            waiting += b"data: %b\n\n" % event
            if len(waiting) >= WRITE_BYTES:
                await self._write(bytes(waiting))
                waiting.clear()
        if waiting:
            await self._write(bytes(waiting))

    async def keep_alive(self) -> None:
        """Send a comment, so that nobody in between takes the silence for an end."""
        await self._write(COMMENT)

    async def finish(self) -> None:
        """Send the last event and end the answer."""
        await self.send([DONE])
        async with self._bounded():
            await self.response.write_eof()

    async def _write(self, data: bytes) -> None:
        async with self._bounded():
            await self.response.write(data)
            await self._request.writer.drain()

    @asynccontextmanager
    async def _bounded(self) -> AsyncIterator[None]:
        try:
            async with asyncio.timeout(self._send_timeout_s):
                yield
        except TimeoutError:
            if self._request.transport is not None:
                self._request.transport.abort()
            raise ReaderStalled("nothing was read in time") from None
