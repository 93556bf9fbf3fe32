"""Server-sent events to one reader, under the rules of the WebSocket's writer."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager

from aiohttp import web

from gateway.net.send_backlog import SendBacklog
from gateway.net.socket_options import limit_write_buffer
from gateway.net.tcp_info import read_transport_path
from gateway.stream.network_estimate import NetworkEstimate, PathSample
from gateway.stream.network_state import NetworkState

logger = logging.getLogger(__name__)

COMMENT = b": keep-alive\n\n"
DONE = b"[DONE]"
WRITE_BYTES = 16 * 1024  # events that wait together leave together, up to about this much
HEADERS = {
    "Content-Type": "text/event-stream; charset=utf-8",
    "Cache-Control": "no-cache",
    "X-Accel-Buffering": "no",  # or a proxy collects what should flow
}


class EventStream:
    """An answer that is a stream of events: ``start``, ``send``…, ``finish``.

    What is sent next is chosen once there is room. A reader that takes nothing for
    ``send_timeout_s`` loses its connection at one of the looks at the network, of which there is
    to be one a second; one that leaves, or is left, cancels the handler's task. ``on_network`` is
    told what the network does at each look at it.
    """

    def __init__(
        self,
        request: web.Request,
        *,
        send_timeout_s: float,
        on_network: Callable[[NetworkState], None],
    ) -> None:
        self._request = request
        self._backlog = SendBacklog(send_timeout_s)
        self._on_network = on_network
        self._estimate = NetworkEstimate()
        self._first: PathSample | None = None
        self._newest: PathSample | None = None
        self.response = web.StreamResponse(headers=HEADERS)

    @property
    def network(self) -> NetworkState:
        """What its network does, as of the last look."""
        return self._estimate.state

    @property
    def segments(self) -> tuple[int, int]:
        """TCP segments with data that left while this answer was looked at, and those sent again:
        its connection may have carried others before."""
        first, newest = self._first, self._newest
        if first is None or newest is None:
            return 0, 0
        return (
            newest.num_segments - first.num_segments,
            newest.num_retransmitted - first.num_retransmitted,
        )

    def sample_network(self) -> None:
        """Look at the kernel's counters, which have no pings beside them here, and give up a
        reader that has had its time: this is what bounds the waits for room."""
        transport = self._request.transport
        if transport is None:
            return
        sample = read_transport_path(transport)
        if sample is not None:
            self._first = self._first or sample
            self._newest = sample
            self._estimate.note_path(sample)
            self._on_network(self._estimate.state)
            if self._backlog.is_overdue(sample, asyncio.get_running_loop().time()):
                logger.info("%s: nothing read in time, connection ended", self._request.path)
                transport.abort()

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
        await self.response.write_eof()

    async def _write(self, data: bytes) -> None:
        await self.response.write(data)
        await self._request.writer.drain()


class EventStreams:
    """Those that are open at the moment; how many there may be is for the callers to bound."""

    def __init__(self) -> None:
        self._open: set[EventStream] = set()
        self._past_out = 0
        self._past_again = 0

    def __iter__(self) -> Iterator[EventStream]:
        return iter(tuple(self._open))

    @property
    def networks(self) -> tuple[NetworkState, ...]:
        return tuple(stream.network for stream in self._open)

    @property
    def segments(self) -> tuple[int, int]:
        """TCP segments with data sent, and sent again, of all answers that are or were open."""
        num_out, num_again = self._past_out, self._past_again
        for stream in self._open:
            num_out += stream.segments[0]
            num_again += stream.segments[1]
        return num_out, num_again

    @contextmanager
    def follow(self, stream: EventStream) -> Iterator[EventStream]:
        """Look at the stream's network now, when it ends, and in between."""
        self._open.add(stream)
        try:
            stream.sample_network()
            yield stream
        finally:
            stream.sample_network()
            self._open.discard(stream)
            self._past_out += stream.segments[0]
            self._past_again += stream.segments[1]
