"""A model that is loaded again every few seconds while eight cameras send: what do they notice?

Eight streams of 30 frames/s (``latest``, deadline 500 ms) go to one gateway; every ``--every``
seconds the model is loaded again: a new worker starts, warms up and takes over, the old one
finishes what it has. Counted: errors, receipts, closed sockets, the gateway's memory; measured:
the age of results while a reload runs and while none does.

    python -m loadtest.bench_reload [--seconds 300] [--every 5] [--model centerface]
"""

from __future__ import annotations

import argparse
import asyncio
import json
import statistics
import urllib.request
from dataclasses import dataclass, field

from engine.models.store import ModelStore
from gateway.client import StreamStatistics, connect, frames_from_bytes
from loadtest import machine
from loadtest.gateway_process import GatewayProcess
from loadtest.pictures import encoded_frames

STREAMS = 8
FPS = 30.0
DEADLINE_MS = 500.0
LOAD_S = 120.0
CONFIG = """
[models.{model}]
workers = 1
"""


@dataclass(slots=True)
class Seen:
    """What the generator saw."""

    is_reloading: bool = False
    quiet_ages_s: list[float] = field(default_factory=list)
    reload_ages_s: list[float] = field(default_factory=list)
    reload_s: list[float] = field(default_factory=list)
    failures: list[str] = field(default_factory=list)
    statistics: list[StreamStatistics] = field(default_factory=list)
    closed: int = 0
    gateway_mb: list[float] = field(default_factory=list)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--seconds", type=float, default=300.0)
    parser.add_argument("--every", type=float, default=5.0)
    parser.add_argument("--model", default="centerface")
    arguments = parser.parse_args()
    print(machine.describe())
    store = ModelStore()
    store.pull(arguments.model)
    pictures = encoded_frames(store.pull_clip("face"), width=320, height=256, count=64)
    with GatewayProcess(CONFIG.format(model=arguments.model)) as gateway:
        seen = asyncio.run(
            load(gateway, pictures, arguments.model, arguments.seconds, arguments.every)
        )
        workers = len(gateway.worker_pids)
    report(seen, workers)


async def load(
    gateway: GatewayProcess, pictures: list[bytes], model: str, seconds: float, every_s: float
) -> Seen:
    seen = Seen()
    end = asyncio.get_running_loop().time() + seconds
    async with asyncio.TaskGroup() as tasks:
        for number in range(STREAMS):
            tasks.create_task(
                camera(gateway.url, pictures, model, seen, number, end), name=f"camera {number}"
            )
        tasks.create_task(reload_often(gateway, model, seen, every_s, end), name="reloads")
        tasks.create_task(watch_memory(gateway, seen, end), name="memory")
    return seen


async def camera(
    url: str, pictures: list[bytes], model: str, seen: Seen, number: int, end: float
) -> None:
    loop = asyncio.get_running_loop()
    await asyncio.sleep(number / FPS / STREAMS)  # cameras are not in step with one another
    source = frames_from_bytes(pictures, fps=FPS, loop=True)

    def on_event(event: object) -> None:
        seen.closed += getattr(event, "name", "") == "disconnected"

    async with connect(url, on_event=on_event) as client:
        stream = client.stream_frames(source, model=model, policy="latest", deadline_ms=DEADLINE_MS)
        async for result in stream:
            if loop.time() >= end:
                source.stop()  # the stream ends by itself: every receipt is awaited
            elif seen.is_reloading:
                seen.reload_ages_s.append(result.latency_s)
            else:
                seen.quiet_ages_s.append(result.latency_s)
        seen.statistics.append(stream.statistics)


async def reload_often(
    gateway: GatewayProcess, model: str, seen: Seen, every_s: float, end: float
) -> None:
    loop = asyncio.get_running_loop()
    due = loop.time() + every_s
    while due < end:
        await asyncio.sleep(due - loop.time())
        due = max(due + every_s, loop.time())
        began = loop.time()
        seen.is_reloading = True
        try:
            await asyncio.to_thread(ask_to_load, gateway.http_url, model)
            seen.reload_s.append(loop.time() - began)
        except OSError as error:
            seen.failures.append(str(error))
        seen.is_reloading = False


def ask_to_load(url: str, model: str) -> str:
    """Returns the version that serves; raises ``OSError``."""
    request = urllib.request.Request(f"{url}/v2/repository/models/{model}/load", b"{}")
    with urllib.request.urlopen(request, timeout=LOAD_S) as answer:
        return str(json.loads(answer.read())["version"])


async def watch_memory(gateway: GatewayProcess, seen: Seen, end: float) -> None:
    loop = asyncio.get_running_loop()
    while loop.time() < end:
        seen.gateway_mb.append(machine.rss_megabytes(gateway.pid))
        await asyncio.sleep(min(1.0, max(0.0, end - loop.time())))


def growth_mb(samples: list[float]) -> float:
    """Median of the last minute minus median of the first; of a third each of a short run."""
    span = min(60, max(1, len(samples) // 3))
    return statistics.median(samples[-span:]) - statistics.median(samples[:span])


def report(seen: Seen, workers: int) -> None:
    adds_up = all(counts.receipts_add_up for counts in seen.statistics)
    errors = sum(counts.errors for counts in seen.statistics)
    quiet, during = (
        [age * 1000 for age in ages] for ages in (seen.quiet_ages_s, seen.reload_ages_s)
    )
    print(f"reloads               {len(seen.reload_s)} done, {len(seen.failures)} refused")
    print(f"one reload            {machine.spread(seen.reload_s)} s")
    for name, ages in (("between reloads", quiet), ("while one runs", during)):
        shown = ", ".join(f"p{p} {machine.percentile(ages, p / 100):.0f} ms" for p in (50, 95, 99))
        print(f"{name:<21} {len(ages)} results, age {shown}")
    print(f"gateway memory        {machine.spread(seen.gateway_mb, 1)} MB")
    print(f"errors                {errors}, sockets closed {seen.closed}, workers left {workers}")
    print(f"receipts add up       {'yes' if adds_up else 'NO'}")
    machine.print_result(
        reloads=len(seen.reload_s),
        refused=len(seen.failures),
        errors=errors,
        closed=seen.closed,
        receipts_add_up=int(adds_up),
        gateway_growth_mb=growth_mb(seen.gateway_mb),
        p99_quiet_ms=machine.percentile(quiet, 0.99),
        p99_reload_ms=machine.percentile(during, 0.99),
    )


if __name__ == "__main__":
    main()
