"""Many sockets, each with an answer that flows: gaps, the gateway's core, memory, cost per token.

The gateway (with an engine that costs next to nothing) has one core, the clients another. The cost
of a token message is compared with that of a bare aiohttp echo, one message in and one out, on as
many sockets at the same rate: processor time of the server in user and kernel space, by message.

    python -m loadtest.delivery.sockets [--sockets 1000] [--seconds 60] [--core 0 --client-core 1]
"""

from __future__ import annotations

import argparse
import asyncio
import os
import statistics
import time
import urllib.request
from collections.abc import Coroutine
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any, TypeVar

import uvloop

from loadtest import machine
from loadtest.delivery.steady_engine import TOKENS
from loadtest.delivery.target import Target
from loadtest.delivery.token_clients import Client, EchoClient, TokenClient, connect_all

T = TypeVar("T")

RATE_HZ = 20.0
SETTLE_S = 3.0  # after the last socket is open, before anything counts
ECHO_S = 10.0  # of each of its two measurements
TOKEN_BYTES = 76  # of a token's message
TICKS_PER_PERIOD = 25  # of the echo clients' schedule


@dataclass(frozen=True, slots=True, kw_only=True)
class Window:
    """What a server did while it was watched."""

    cpu_share: float
    cpu_per_message_us: float
    rss_bytes: float


@dataclass(frozen=True, slots=True, kw_only=True)
class SocketFigures:
    """Of one run. Gaps in milliseconds, over the watched time."""

    num_sockets: int
    num_lost: int
    gap_std_ms: float  # of the median stream
    gap_std_p95_ms: float
    within_15: float  # share of all gaps
    window: Window
    bytes_per_socket: float
    loop_lag_max_ms: float
    clients_cpu_share: float
    message_bytes: int


class _Watch:
    """Processor time and messages between two moments."""

    def __init__(self, target: Target) -> None:
        self._target = target
        self._cpu_s, self._at = target.cpu_s(), time.monotonic()

    def end(self, num_messages: int) -> Window:
        cpu_s = self._target.cpu_s() - self._cpu_s
        return Window(
            cpu_share=cpu_s / (time.monotonic() - self._at),
            cpu_per_message_us=1e6 * cpu_s / max(1, num_messages),
            rss_bytes=1e6 * machine.rss_megabytes(self._target.pid),
        )


async def watch_tokens(target: Target, num_sockets: int, seconds: float) -> SocketFigures:
    """One answer on each socket, watched for ``seconds`` once all flow."""
    rss_before = 1e6 * machine.rss_megabytes(target.pid)
    max_tokens = int(RATE_HZ * (seconds + 6 * SETTLE_S + num_sockets / 50))
    clients = [TokenClient(target.port, TOKENS, max_tokens) for _ in range(num_sockets)]
    await connect_all(clients, target.port)
    for client in clients:
        client.begin()
        await asyncio.sleep(0.001)
    await asyncio.sleep(SETTLE_S)
    begins_at, own_cpu_s = time.monotonic(), time.process_time()
    before = sum(len(client.arrivals) for client in clients)
    watch = _Watch(target)
    await asyncio.sleep(seconds)
    window = watch.end(sum(len(client.arrivals) for client in clients) - before)
    own_cpu_s = time.process_time() - own_cpu_s
    lag_max_ms = await asyncio.to_thread(_loop_lag_max_ms, target.port)
    _close_all(clients)
    streams = [[at for at in client.arrivals if at >= begins_at] for client in clients]
    deviations = [1e3 * _gap_std(times) for times in streams if len(times) > 2]
    return SocketFigures(
        num_sockets=num_sockets,
        num_lost=sum(client.is_lost for client in clients),
        gap_std_ms=statistics.median(deviations) if deviations else float("nan"),
        gap_std_p95_ms=machine.percentile(deviations, 0.95) if deviations else float("nan"),
        within_15=_share_within(streams, 1.0 / RATE_HZ, 0.15),
        window=window,
        bytes_per_socket=(window.rss_bytes - rss_before) / num_sockets,
        loop_lag_max_ms=lag_max_ms,
        clients_cpu_share=own_cpu_s / seconds,
        message_bytes=max(client.message_bytes for client in clients),
    )


async def watch_echo(
    target: Target, num_sockets: int, seconds: float, message_bytes: int
) -> Window:
    """As many messages, of the same length, sent back by a bare echo server."""
    clients = [EchoClient(target.port, message_bytes) for _ in range(num_sockets)]
    await connect_all(clients, target.port)
    ticking = asyncio.create_task(_tick(clients), name="echo clients")
    await asyncio.sleep(SETTLE_S)
    before = sum(client.num_echoes for client in clients)
    watch = _Watch(target)
    await asyncio.sleep(seconds)
    window = watch.end(sum(client.num_echoes for client in clients) - before)
    ticking.cancel()
    _close_all(clients)
    return window


async def _tick(clients: list[EchoClient]) -> None:
    """Each client once per period, the clients evenly over it, on an absolute schedule."""
    loop = asyncio.get_running_loop()
    groups = [clients[start::TICKS_PER_PERIOD] for start in range(TICKS_PER_PERIOD)]
    next_at = loop.time()
    while True:
        for group in groups:
            next_at += 1.0 / RATE_HZ / TICKS_PER_PERIOD
            await asyncio.sleep(max(0.0, next_at - loop.time()))
            for client in group:
                client.tick()


def run(
    num_sockets: int = 1000, seconds: float = 60.0, *, cores: tuple[int, int] = (0, 1)
) -> dict[str, float]:
    """Print the figures and return those of the RESULT line. ``cores``: server's and clients'."""
    server_core, client_core = cores
    os.sched_setaffinity(0, {client_core})
    limits = {"max_connections": num_sockets + 16}
    echoes = [_measure_echo(num_sockets, server_core)]
    with Target("gateway", rate_hz=RATE_HZ, tables={"limits": limits}) as target:
        machine.pin([target.pid], server_core)
        tokens = _on_uvloop(watch_tokens(target, num_sockets, seconds))
    # Before and after: a shared machine changes its speed within minutes.
    echoes.append(_measure_echo(num_sockets, server_core))
    ratio = tokens.window.cpu_per_message_us / statistics.mean(echoes)
    _print(tokens, echoes, ratio)
    return {
        "sockets": num_sockets,
        "sockets_lost": tokens.num_lost,
        "sockets_gap_std_ms": tokens.gap_std_ms,
        "sockets_core_share": tokens.window.cpu_share,
        "sockets_kb_each": tokens.bytes_per_socket / 1e3,
        "sockets_loop_lag_max_ms": tokens.loop_lag_max_ms,
        "echo_cost_ratio": ratio,
    }


def _measure_echo(num_sockets: int, core: int) -> float:
    """Processor time of one message of a bare echo, microseconds."""
    with Target("echo") as target:
        machine.pin([target.pid], core)
        echo = watch_echo(target, num_sockets, ECHO_S, TOKEN_BYTES)
        return _on_uvloop(echo).cpu_per_message_us


def profile(num_sockets: int, seconds: float, path: Path, *, cores: tuple[int, int]) -> None:
    """Leave a cProfile of the gateway at ``path``; its figures are not comparable to others."""
    os.sched_setaffinity(0, {cores[1]})
    limits = {"max_connections": num_sockets + 16}
    tables = {"limits": limits}
    with Target("gateway", rate_hz=RATE_HZ, tables=tables, profile_path=path) as target:
        machine.pin([target.pid], cores[0])
        _on_uvloop(watch_tokens(target, num_sockets, seconds))


def _print(tokens: SocketFigures, echoes: list[float], ratio: float) -> None:
    window = tokens.window
    print(f"sockets              {tokens.num_sockets}, of which lost {tokens.num_lost}")
    print(f"gap std, median      {tokens.gap_std_ms:.2f} ms (95 % {tokens.gap_std_p95_ms:.2f})")
    print(f"gaps within 15 %     {100 * tokens.within_15:.1f} %")
    print(f"gateway              {100 * window.cpu_share:.0f} % of a core")
    print(f"clients              {100 * tokens.clients_cpu_share:.0f} % of a core")
    print(f"loop lag, longest    {tokens.loop_lag_max_ms:.1f} ms")
    print(f"memory per socket    {tokens.bytes_per_socket / 1e3:.0f} kB")
    print(f"token message        {window.cpu_per_message_us:.1f} µs, {tokens.message_bytes} bytes")
    print(f"bare echo            {' and '.join(f'{each:.1f}' for each in echoes)} µs")
    print(f"ratio                {ratio:.2f}")


def _gap_std(times: list[float]) -> float:
    return statistics.pstdev(later - earlier for earlier, later in pairwise(times))


def _share_within(streams: list[list[float]], gap_s: float, tolerance: float) -> float:
    gaps = [later - earlier for times in streams for earlier, later in pairwise(times)]
    return sum(abs(gap - gap_s) <= tolerance * gap_s for gap in gaps) / max(1, len(gaps))


def _loop_lag_max_ms(port: int) -> float:
    with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=5) as answer:
        for line in answer.read().decode().splitlines():
            if line.startswith("clawstream_loop_lag_seconds") and '"max"' in line:
                return 1e3 * float(line.rsplit(" ", 1)[1])
    return float("nan")


def _close_all(clients: list[TokenClient] | list[EchoClient]) -> None:
    client: Client
    for client in clients:
        if client.transport is not None:
            client.transport.abort()


def _on_uvloop(work: Coroutine[Any, Any, T]) -> T:
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        return runner.run(work)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--sockets", type=int, default=1000)
    parser.add_argument("--seconds", type=float, default=60.0)
    parser.add_argument("--core", type=int, default=0, help="of the server")
    parser.add_argument("--client-core", type=int, default=1)
    parser.add_argument("--profile", type=Path, help="leave a cProfile of the gateway here instead")
    arguments = parser.parse_args()
    print(machine.describe())
    cores = (arguments.core, arguments.client_core)
    if arguments.profile is not None:
        profile(arguments.sockets, arguments.seconds, arguments.profile, cores=cores)
        return
    machine.print_result(**run(arguments.sockets, arguments.seconds, cores=cores))


if __name__ == "__main__":
    main()
