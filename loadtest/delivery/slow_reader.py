"""Clients that read too slowly: how old their results are, and when the gateway gives them up.

1. 30 results of 50 kB a second for a client that reads 1 MB/s with a receive buffer of 64 KiB: the
   age of each result when its last byte is read, and the gateway's memory. (The kernel grants
   twice what a socket asks for; what counts is what it grants.)
2. Readers that stall, trickle (1 kB/s), or stall and go on uploading are gone by their deadline;
   one whose handler blocks for three seconds is not.

    python -m loadtest.delivery.slow_reader [--seconds 20] [--core 0 --client-core 1]
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import os
import re
import time
import urllib.request
from collections.abc import Callable
from dataclasses import dataclass

from loadtest import machine
from loadtest.delivery.frame_client import FPS, FrameClient, Reading
from loadtest.delivery.target import Target

RESULT_BYTES = 50_000
READ_BYTES_PER_S = 1e6
RECEIVE_BUFFER_BYTES = 64 * 1024
WARM_UP_S = 3.0
TRICKLE_BYTES_PER_S = 1_000.0
DEADLINE_S, GRACE_S = 10.0, 2.0  # ack_deadline_s and send_timeout_s as configured by default
BLOCKED_S = 3.0
POLL_S = 0.1
_CLOSED = re.compile(r'clawstream_connections_closed_total\{code="(\d+)"\} ([0-9.]+)')


@dataclass(frozen=True, slots=True, kw_only=True)
class SlowFigures:
    """Of the slow reader, after a warm-up. Seconds, and results per second."""

    age_p50_s: float
    age_p99_s: float
    results_per_s: float
    megabytes_per_s: float
    drops: dict[str, int]
    rss_growth_mb: float


@dataclass(frozen=True, slots=True)
class Ended:
    """When the gateway gave a client up; None: it did not."""

    after_s: float | None
    code: int | None


def a_client(target: Target, reading: Reading) -> FrameClient:
    return FrameClient(
        target.port,
        reading,
        receive_buffer_bytes=RECEIVE_BUFFER_BYTES // 2,
        options={"policy": "latest"},
    )


async def watch_slow_reader(target: Target, seconds: float) -> SlowFigures:
    client = a_client(target, Reading(bytes_per_s=READ_BYTES_PER_S))
    running = asyncio.create_task(client.run(), name="slow reader")
    await asyncio.sleep(WARM_UP_S)
    began_at, bytes_before = time.monotonic(), client.seen.num_bytes
    rss_before = machine.rss_megabytes(target.pid)
    await asyncio.sleep(seconds)
    rss_growth = machine.rss_megabytes(target.pid) - rss_before
    running.cancel()
    with contextlib.suppress(asyncio.CancelledError):
        await running
    ages = [age_s for at, age_s in client.seen.ages if at >= began_at]
    return SlowFigures(
        age_p50_s=machine.percentile(ages, 0.5),
        age_p99_s=machine.percentile(ages, 0.99),
        results_per_s=len(ages) / seconds,
        megabytes_per_s=(client.seen.num_bytes - bytes_before) / seconds / 1e6,
        drops=dict(client.seen.drops),
        rss_growth_mb=rss_growth,
    )


async def watch_end(target: Target, spoil: Callable[[Reading], None], limit_s: float) -> Ended:
    """A healthy client, spoilt after a second; how long the gateway then keeps it."""
    reading = Reading(bytes_per_s=50e6)
    client = a_client(target, reading)
    running = asyncio.create_task(client.run(), name="reader")
    await asyncio.sleep(1.0)
    assert client.seen.ages, "the client was never healthy"
    spoil(reading)
    spoilt_at = time.monotonic()
    ended = Ended(None, None)
    while ended.code is None and time.monotonic() - spoilt_at < limit_s:
        await asyncio.sleep(POLL_S)
        code = await asyncio.to_thread(_code_of_the_closed, target.port)
        if code is not None:
            ended = Ended(time.monotonic() - spoilt_at, code)
    running.cancel()
    with contextlib.suppress(asyncio.CancelledError):
        await running
    return ended


def stall(reading: Reading) -> None:
    """Nothing is read any more; what the camera has credit for is still sent."""
    stall_and_upload(reading)
    asyncio.get_running_loop().call_later(BLOCKED_S, setattr, reading, "uploads", False)


def stall_and_upload(reading: Reading) -> None:
    reading.is_stalled = True


def trickle(reading: Reading) -> None:
    reading.bytes_per_s, reading.tick_s = TRICKLE_BYTES_PER_S, 0.05


def block_for_a_while(reading: Reading) -> None:
    """The handler is busy; the client reads again afterwards."""
    stall_and_upload(reading)
    asyncio.get_running_loop().call_later(BLOCKED_S, setattr, reading, "is_stalled", False)


def run(seconds: float = 20.0, *, cores: tuple[int, int] = (0, 1)) -> dict[str, float]:
    """Print the figures and return those of the RESULT line. ``cores``: server's and clients'."""
    os.sched_setaffinity(0, {cores[1]})
    with Target("gateway", result_bytes=RESULT_BYTES) as target:
        machine.pin([target.pid], cores[0])
        slow = asyncio.run(watch_slow_reader(target, seconds))
    print(f"slow reader, age     median {slow.age_p50_s:.3f} s, 99 % {slow.age_p99_s:.3f} s")
    print(
        f"  results            {slow.results_per_s:.1f} of {FPS:.0f} a second, dropped {slow.drops}"
    )
    print(f"  read               {slow.megabytes_per_s:.2f} MB/s")
    print(f"gateway's memory     {slow.rss_growth_mb:+.1f} MB in {seconds:.0f} s")
    ends = asyncio.run(watch_ends(cores[0]))
    for name, ended in ends.items():
        told = "stays" if ended.after_s is None else f"{ended.after_s:.1f} s, {ended.code}"
        print(f"{name:<20} {told}")
    late = DEADLINE_S + GRACE_S
    gone = [e.after_s is not None and e.after_s <= late for n, e in ends.items() if n != "blocked"]
    return {
        "slow_reader_age_p99_s": slow.age_p99_s,
        "slow_reader_results_per_s": slow.results_per_s,
        "slow_reader_rss_growth_mb": slow.rss_growth_mb,
        "bad_readers_gone_in_time": sum(gone) / len(gone),
        "blocked_reader_stays": float(ends["blocked"].after_s is None),
    }


async def watch_ends(core: int) -> dict[str, Ended]:
    """Every kind of bad reader, each with a gateway of its own, all at the same time."""
    spoilers = {
        "stalled": stall,
        "trickling": trickle,
        "stalled, uploading": stall_and_upload,
        "blocked": block_for_a_while,
    }
    with contextlib.ExitStack() as stack:
        targets = [
            stack.enter_context(Target("gateway", result_bytes=RESULT_BYTES)) for _ in spoilers
        ]
        machine.pin([target.pid for target in targets], core)
        limit_s = DEADLINE_S + 2 * GRACE_S
        found = await asyncio.gather(
            *(
                watch_end(target, spoil, limit_s)
                for target, spoil in zip(targets, spoilers.values(), strict=True)
            )
        )
    return dict(zip(spoilers, found, strict=True))


def _code_of_the_closed(port: int) -> int | None:
    with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=5) as answer:
        for code, count in _CLOSED.findall(answer.read().decode()):
            if float(count) > 0:
                return int(code)
    return None


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--seconds", type=float, default=20.0)
    parser.add_argument("--core", type=int, default=0, help="of the gateway")
    parser.add_argument("--client-core", type=int, default=1)
    arguments = parser.parse_args()
    print(machine.describe())
    cores = (arguments.core, arguments.client_core)
    machine.print_result(**run(arguments.seconds, cores=cores))


if __name__ == "__main__":
    main()
