"""Clients of the vision bench: eight at once, who wait for their answers or keep their pace."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Callable, Coroutine, Sequence
from dataclasses import dataclass, field

from gateway.client import connect, frames_from_bytes
from loadtest.vision.peer import Peer

CLIENTS = 8
WARM_UP_S = 1.0
PATIENCE_S = 20.0  # for what is under way at the end


@dataclass(slots=True)
class Answers:
    """What came back within the measured time; ``ages_s`` count from the capture."""

    seconds: float
    ages_s: list[float] = field(default_factory=list)

    @property
    def per_s(self) -> float:
        return len(self.ages_s) / self.seconds


class _Span:
    """The measured time, after a warm-up."""

    def __init__(self, seconds: float) -> None:
        self._now = asyncio.get_running_loop().time
        self.begin = self._now() + WARM_UP_S
        self.end = self.begin + seconds
        self.answers = Answers(seconds)

    @property
    def is_over(self) -> bool:
        return self._now() >= self.end

    def note(self, age_s: float) -> None:
        if self.begin <= self._now() < self.end:
            self.answers.ages_s.append(age_s)


async def ask_gateway(
    url: str,
    pictures: Sequence[bytes],
    seconds: float,
    *,
    model: str,
    fps: float | None = None,
    deadline_ms: float | None = None,
) -> Answers:
    """One stream a client: lossless without ``fps``, else the latest frame counts."""
    span = _Span(seconds)

    async def camera(number: int) -> None:
        if fps is not None:
            await asyncio.sleep(number / fps / CLIENTS)  # cameras are not in step
        source = frames_from_bytes(list(pictures), fps=fps, loop=True)
        policy = "lossless" if fps is None else "latest"
        async with connect(url) as client:
            stream = client.stream_frames(
                source, model=model, policy=policy, deadline_ms=deadline_ms
            )
            async for result in stream:
                span.note(result.latency_s)
                if span.is_over:
                    source.stop()
                    return

    await _together(camera, seconds)
    return span.answers


async def ask_peer(
    peer: Peer, pictures: Sequence[bytes], seconds: float, *, fps: float | None = None
) -> Answers:
    """Each client waits for its answer before it asks again; with ``fps`` it asks in time anyway,
    on one more connection if it must."""
    span = _Span(seconds)
    requests = [peer.request(picture) for picture in pictures]

    async def camera(number: int) -> None:
        connection = _Connection(peer.port)
        for request in itertools.cycle(requests):
            if span.is_over:
                break
            await connection.ask(request, span)
        connection.close()

    async def paced_camera(number: int) -> None:
        assert fps is not None
        await asyncio.sleep(number / fps / CLIENTS)
        free: list[_Connection] = []
        loop, due = asyncio.get_running_loop(), asyncio.get_running_loop().time()
        asking: set[asyncio.Task[None]] = set()
        for request in itertools.cycle(requests):
            if span.is_over:
                break
            task = asyncio.create_task(_ask_once(peer.port, free, request, span), name="ask")
            asking.add(task)
            task.add_done_callback(asking.discard)
            due += 1.0 / fps
            await asyncio.sleep(max(0.0, due - loop.time()))
        for task in asking:
            task.cancel()
        await asyncio.gather(*asking, return_exceptions=True)
        for connection in free:
            connection.close()

    await _together(camera if fps is None else paced_camera, seconds)
    return span.answers


async def _together(camera: Callable[[int], Coroutine[None, None, None]], seconds: float) -> None:
    limit_s = WARM_UP_S + seconds + PATIENCE_S
    async with asyncio.timeout(limit_s), asyncio.TaskGroup() as tasks:
        for number in range(CLIENTS):
            tasks.create_task(camera(number), name=f"camera {number}")


class _Connection:
    """One kept-alive connection, as little work as possible."""

    def __init__(self, port: int) -> None:
        self._port = port
        self._writer: asyncio.StreamWriter | None = None

    async def ask(self, request: bytes, span: _Span) -> None:
        loop = asyncio.get_running_loop()
        asked_at = loop.time()
        if self._writer is None:
            self._reader, self._writer = await asyncio.open_connection("127.0.0.1", self._port)
        self._writer.write(request)
        head = (await self._reader.readuntil(b"\r\n\r\n")).lower()
        length = int(head.split(b"content-length:", 1)[1].split(b"\r\n", 1)[0])
        body = await self._reader.readexactly(length)
        if head.startswith(b"http/1.1 200"):
            span.note(loop.time() - asked_at)
        elif not head.startswith((b"http/1.1 429", b"http/1.1 503")):
            raise RuntimeError(f"the peer answered {head!r} {body[:300]!r}")

    def close(self) -> None:
        if self._writer is not None:
            self._writer.close()


async def _ask_once(port: int, free: list[_Connection], request: bytes, span: _Span) -> None:
    connection = free.pop() if free else _Connection(port)
    try:
        await connection.ask(request, span)
    except BaseException:
        connection.close()
        raise
    free.append(connection)
