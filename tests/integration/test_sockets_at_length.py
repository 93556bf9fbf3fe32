"""Sockets in numbers that no other test reaches: 20,000 that are reset, 2,000 that stay idle.

A gateway in its own process with an engine that costs next to nothing. Beside the crowd one client
streams frames and chats; it is to notice nothing.
"""

from __future__ import annotations

import asyncio
import resource
import socket
import struct
import time
from collections import Counter
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from itertools import pairwise

import psutil
import pytest

from gateway.client import Client, connect, frames_from_bytes
from gateway.commands.scrape import Scrape, scrape
from gateway.wire.codec import FrameHeader, MessageType, encode_binary
from loadtest import machine
from loadtest.delivery.frame_client import PICTURE
from loadtest.delivery.steady_engine import FRAMES, TOKENS
from loadtest.delivery.target import Target
from loadtest.delivery.token_clients import HANDSHAKE, client_frame, connect_all
from loadtest.delivery.token_clients import Client as RawClient
from tests.fakes.uvloop_runner import on_uvloop

pytestmark = pytest.mark.slow

NUM_RESETS = 20_000
RESETS_AT_ONCE = 64
RESUME_WINDOW_S = 1.0  # as long the streams of a lost connection live on
NUM_IDLE = 2_000
IDLE_S, NUM_ROUNDS = 10.0, 3
FILES = NUM_IDLE + 512  # open at once, in each of the two processes
# Far more than a free machine needs: client and gateway may share a core with other work.
LONGEST_PAUSE_S = 3.0
SETTLE_S = 30.0
MAX_GROWTH_MB = 5.0
MAX_ROUND_MB = 2.0  # a kilobyte for each idle socket
MAX_IDLE_KB = 100.0
FPS = 20.0
RATE_HZ = 20.0
ANSWER_TOKENS = 40
EMPTY = (
    *("clawstream_connections", "clawstream_sessions", "clawstream_sessions_detached"),
    *("clawstream_streams", "clawstream_lanes", "clawstream_detached_bytes"),
    *("clawstream_outbox_bytes", "clawstream_input_bytes", "clawstream_text_reserve_tokens"),
    *("clawstream_frames_in_flight", "clawstream_prompts_in_flight"),
)


def frame(seq: int) -> bytes:
    header = FrameHeader(type=MessageType.FRAME, stream=1, seq=seq, t_us=0)
    return client_frame(encode_binary(header, PICTURE), opcode=2)


REALTIME = b'"options":{"priority":"realtime"}'  # a busy machine refuses the other classes
HELLO = client_frame(b'{"type":"hello"}')
OPEN = client_frame(
    b'{"type":"open","stream":1,"model":"%s",%s}' % (FRAMES.encode(), REALTIME)
) + client_frame(
    b'{"type":"open","stream":2,"kind":"tokens","model":"%s",%s}' % (TOKENS.encode(), REALTIME)
)
FRAME_BYTES = b"".join(map(frame, range(4)))
PROMPT = client_frame(
    b'{"type":"prompt","stream":2,"id":"a","prompt":"x","sampling":{"max_tokens":%d}}'
    % ANSWER_TOKENS
)


@dataclass(frozen=True, slots=True)
class Moment:
    """When a client leaves: it has sent ``said`` and read up to ``heard``, if there is one."""

    said: bytes
    heard: bytes | None = None
    is_upgraded: bool = False  # so that the gateway is sure to count a connection


def moments(port: int) -> dict[str, Moment]:
    upgrade = HANDSHAKE.format(port=port).encode()
    greeted, opened = upgrade + HELLO, upgrade + HELLO + OPEN
    token = b'"type":"token","stream":2,"id":"a","seq":%d'
    return {
        "before the upgrade": Moment(b""),
        "in mid-request": Moment(upgrade[:60]),
        "in mid-handshake": Moment(upgrade),
        "before hello": Moment(upgrade, b"\r\n\r\n", is_upgraded=True),
        "with hello unanswered": Moment(greeted, b"\r\n\r\n", is_upgraded=True),
        "after hello": Moment(greeted, b'"type":"welcome"', is_upgraded=True),
        "with open streams": Moment(opened, b'"type":"opened","stream":2', is_upgraded=True),
        "in mid-frame": Moment(opened + FRAME_BYTES[:-50], b'"opened"', is_upgraded=True),
        "after the frames": Moment(opened + FRAME_BYTES, b'"opened"', is_upgraded=True),
        "in mid-answer": Moment(opened + FRAME_BYTES + PROMPT, token % 2, is_upgraded=True),
    }


async def leave(port: int, moment: Moment) -> None:
    """Connect, and vanish with an RST."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    try:
        writer.write(moment.said)
        if moment.heard is not None:
            async with asyncio.timeout(SETTLE_S):
                await reader.readuntil(moment.heard)
    finally:
        sock = writer.get_extra_info("socket")
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        writer.transport.abort()


async def leave_often(target: Target, numbers: range) -> Counter[str]:
    """A client for each number, ``RESETS_AT_ONCE`` at a time; how many left at which moment."""
    left: Counter[str] = Counter()
    choices = list(moments(target.port).items())
    queue = iter(numbers)

    async def leave_in_turn() -> None:
        for number in queue:
            name, moment = choices[number % len(choices)]
            await leave(target.port, moment)
            left[name] += 1

    async with asyncio.TaskGroup() as tasks:
        for index in range(RESETS_AT_ONCE):
            tasks.create_task(leave_in_turn(), name=f"leaves rudely {index}")
    return left


class IdleClient(RawClient):
    """Says hello at once, answers pings, and wants nothing."""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        super().connection_made(transport)
        self.send(b'{"type":"hello"}')

    def on_text(self, data: bytes, now: float) -> None:
        if data.startswith(b'{"type":"ping"'):
            self.send(data.replace(b"ping", b"pong"))


@dataclass(slots=True)
class Regular:
    """A client that streams frames and chats until told to stop."""

    results_at: list[float] = field(default_factory=list)
    answers: list[list[float]] = field(default_factory=list)  # asked at, then each event's moment
    is_leaving: bool = False

    @property
    def longest_pause_s(self) -> float:
        series = [self.results_at, *self.answers]
        return max(later - earlier for times in series for earlier, later in pairwise(times))

    async def film(self, client: Client) -> None:
        source = frames_from_bytes([PICTURE], fps=FPS, loop=True)
        stream = client.stream_frames(source, model=FRAMES, priority="realtime")
        async for _ in stream:
            self.results_at.append(time.monotonic())
            if self.is_leaving:
                break
        await stream.aclose()
        assert stream.statistics.closed is not None
        assert stream.statistics.receipts_add_up, stream.statistics
        assert stream.statistics.errors == stream.statistics.refused == 0

    async def chat(self, client: Client) -> None:
        sampling = {"max_tokens": ANSWER_TOKENS}
        while not self.is_leaving:
            times = [time.monotonic()]
            self.answers.append(times)
            answer = client.stream_chat(TOKENS, prompt="x", sampling=sampling, priority="realtime")
            seqs = []
            async for event in answer:
                times.append(event.received_at)
                seqs.append(event.seq)
            assert seqs == list(range(len(seqs)))
            assert answer.usage is not None
            assert answer.usage.completion_tokens == ANSWER_TOKENS


@asynccontextmanager
async def a_regular(target: Target) -> AsyncIterator[Regular]:
    """Frames and answers flow on entry; on exit the receipts are compared."""
    regular = Regular()
    async with (
        connect(f"ws://127.0.0.1:{target.port}", reconnect=False) as client,
        asyncio.TaskGroup() as tasks,
    ):
        tasks.create_task(regular.film(client), name="films")
        tasks.create_task(regular.chat(client), name="chats")
        await asyncio.sleep(1.0)
        try:
            yield regular
        finally:
            regular.is_leaving = True


@dataclass(frozen=True, slots=True)
class Size:
    """What the gateway's process holds."""

    files: int
    threads: int
    rss_mb: float


def size_of(target: Target) -> Size:
    process = psutil.Process(target.pid)
    return Size(process.num_fds(), process.num_threads(), machine.rss_megabytes(target.pid))


async def look(target: Target) -> Scrape:
    return await asyncio.to_thread(scrape, f"http://127.0.0.1:{target.port}", None)


async def settled(target: Target, *, num_connections: int) -> Scrape:
    """The metrics once only that many connections are left, and nothing waits for others."""
    give_up_at = time.monotonic() + SETTLE_S
    while True:
        found = await look(target)
        is_left = found.value("clawstream_connections") == num_connections
        if is_left and found.value("clawstream_sessions_detached") == 0:
            return found
        assert time.monotonic() < give_up_at, {name: found.value(name) for name in EMPTY}
        await asyncio.sleep(0.2)


async def check_nothing_is_left(target: Target, before: Size) -> Scrape:
    """Every gauge is at zero, every receipt is there, and no descriptor or thread is left over."""
    found = await settled(target, num_connections=0)
    assert {name: found.value(name) for name in EMPTY} == dict.fromkeys(EMPTY, 0.0)
    for kind, results in (("frames", "frame_results"), ("prompts", "prompt_results")):
        errors = results.replace("results", "errors")
        told = sum(
            found.value(f"clawstream_{name}_total")
            for name in (results, errors, f"{kind}_dropped", f"{kind}_cancelled")
        )
        assert told == found.value(f"clawstream_{kind}_accepted_total")
    closed = found.value("clawstream_connections_closed_total")
    assert closed == found.value("clawstream_connections_accepted_total")
    after = size_of(target)
    assert after.files <= before.files
    assert after.threads <= before.threads
    return found


def show(capfd: pytest.CaptureFixture[str], *figures: str) -> None:
    with capfd.disabled():
        print("", *figures, sep="\n")  # noqa: T201 - the figures are for people


@pytest.fixture
def many_files() -> Iterator[None]:
    """The process, and what it starts, may open as many files as this needs."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    unlimited = resource.RLIM_INFINITY
    if hard != unlimited and hard < FILES:
        pytest.skip(f"{FILES} open files are needed, {hard} are allowed")
    if soft != unlimited and soft < FILES:
        resource.setrlimit(resource.RLIMIT_NOFILE, (FILES, hard))
    yield
    resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


def test_twenty_thousand_resets_leave_nothing_and_disturb_nobody(
    capfd: pytest.CaptureFixture[str],
) -> None:
    limits = {"resume_window_s": RESUME_WINDOW_S}

    @on_uvloop
    async def run() -> None:
        with Target("gateway", rate_hz=RATE_HZ, result_bytes=1000, tables={"limits": limits}) as t:
            await look(t)
            before = size_of(t)
            async with a_regular(t) as regular:
                began_at = time.monotonic()
                tenth = NUM_RESETS // 10
                left = await leave_often(t, range(tenth))
                await settled(t, num_connections=1)
                rss_mb = size_of(t).rss_mb
                left += await leave_often(t, range(tenth, NUM_RESETS))
                await settled(t, num_connections=1)
                took_s = time.monotonic() - began_at
                growth_mb = size_of(t).rss_mb - rss_mb
            found = await check_nothing_is_left(t, before)
            upgraded = sum(left[name] for name, m in moments(t.port).items() if m.is_upgraded)
        show(
            capfd,
            f"{left.total()} resets in {took_s:.0f} s",
            f"memory {growth_mb:+.1f} MB after the first tenth ({rss_mb:.0f} MB)",
            f"longest pause of the regular client {regular.longest_pause_s:.2f} s",
        )
        assert set(left.values()) == {NUM_RESETS // 10}
        assert found.value("clawstream_connections_accepted_total") > upgraded
        assert found.value("clawstream_prompts_accepted_total") >= left["in mid-answer"]
        assert growth_mb < MAX_GROWTH_MB
        assert regular.longest_pause_s < LONGEST_PAUSE_S

    run()
    assert "Traceback" not in capfd.readouterr().err


@pytest.mark.usefixtures("many_files")
def test_two_thousand_idle_sockets_cost_little_and_disturb_nobody(
    capfd: pytest.CaptureFixture[str],
) -> None:
    limits = {"max_connections": NUM_IDLE + 16, "ping_interval_s": 5.0, "pong_timeout_s": 15.0}

    @on_uvloop
    async def run() -> None:
        with Target("gateway", rate_hz=RATE_HZ, result_bytes=1000, tables={"limits": limits}) as t:
            await look(t)
            before = size_of(t)
            async with a_regular(t) as regular:
                first = await hold_idle(t, seconds=1.0)
                sizes_mb = []
                for _ in range(NUM_ROUNDS):
                    await settled(t, num_connections=1)
                    sizes_mb.append(size_of(t).rss_mb)
                    again = await hold_idle(t, seconds=IDLE_S)
                await settled(t, num_connections=1)
                sizes_mb.append(size_of(t).rss_mb)
                # A leak shows in every round; what the collector has left lying shows in one.
                growth_mb = min(after - before for before, after in pairwise(sizes_mb))
            await check_nothing_is_left(t, before)
        show(
            capfd,
            f"idle sockets: {first:.1f} kB each, the last time {again:.1f} kB",
            f"memory after each round {', '.join(f'{size_mb:.0f}' for size_mb in sizes_mb)} MB",
            f"longest pause of the regular client {regular.longest_pause_s:.2f} s",
        )
        assert first < MAX_IDLE_KB
        assert growth_mb < MAX_ROUND_MB
        assert regular.longest_pause_s < LONGEST_PAUSE_S

    run()
    assert "Traceback" not in capfd.readouterr().err


async def hold_idle(target: Target, *, seconds: float) -> float:
    """``NUM_IDLE`` sockets for so long; by how many kB each of them makes the gateway grow."""
    rss_mb = size_of(target).rss_mb
    clients = [IdleClient(target.port) for _ in range(NUM_IDLE)]
    await connect_all(clients, target.port)
    await asyncio.sleep(seconds)
    found = await look(target)
    kilobytes = 1e3 * (size_of(target).rss_mb - rss_mb) / NUM_IDLE
    assert found.value("clawstream_connections") == NUM_IDLE + 1
    assert not any(client.is_lost for client in clients)
    for client in clients:
        assert client.transport is not None
        client.transport.abort()
    return kilobytes
