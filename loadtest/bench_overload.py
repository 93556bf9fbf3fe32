"""Eight cameras into one worker that can serve one: ages, shares and memory under overload.

Eight streams of 30 frames/s (``latest``, deadline 300 ms) meet one CenterFace worker on core 0;
gateway and generator share core 1. First the capacity of one saturating stream is measured, then
the overload runs: a warm-up, then the measured minutes.

    python -m loadtest.bench_overload [--minutes 3] [--warm-up 30]
"""

from __future__ import annotations

import argparse
import asyncio
import os
import statistics
from dataclasses import dataclass, field

from engine.models.store import ModelStore
from gateway.client import StreamStatistics, connect, frames_from_bytes
from loadtest import machine
from loadtest.bench_path import CONFIG, measure_path
from loadtest.gateway_process import GatewayProcess
from loadtest.pictures import encoded_frames

STREAMS = 8
FPS = 30.0
DEADLINE_MS = 300.0
CAPACITY_S = 15.0


@dataclass(slots=True)
class Load:
    """What the generator saw after the warm-up."""

    ages_s: list[list[float]]
    statistics: list[StreamStatistics] = field(default_factory=list)
    gateway_mb: list[float] = field(default_factory=list)
    worker_mb: list[float] = field(default_factory=list)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--minutes", type=float, default=3.0)
    parser.add_argument("--warm-up", type=float, default=30.0)
    arguments = parser.parse_args()
    print(machine.describe())
    store = ModelStore()
    store.pull("centerface")
    pictures = encoded_frames(store.pull_clip("face"), width=320, height=256, count=64)
    with GatewayProcess(CONFIG) as gateway:
        machine.pin([gateway.pid, os.getpid()], core=1)
        machine.pin(gateway.worker_pids, core=0)
        before = asyncio.run(measure_path(gateway.url, pictures, CAPACITY_S))
        load = asyncio.run(overload(gateway, pictures, arguments.warm_up, arguments.minutes * 60.0))
        after = asyncio.run(measure_path(gateway.url, pictures, CAPACITY_S))
    report(load, [before, after], arguments.minutes * 60.0)


async def overload(
    gateway: GatewayProcess, pictures: list[bytes], warm_up_s: float, measured_s: float
) -> Load:
    load = Load(ages_s=[[] for _ in range(STREAMS)])
    loop = asyncio.get_running_loop()
    begin, end = loop.time() + warm_up_s, loop.time() + warm_up_s + measured_s
    async with asyncio.TaskGroup() as tasks:
        for number in range(STREAMS):
            tasks.create_task(
                camera(gateway.url, pictures, load, number, begin, end), name=f"camera {number}"
            )
        tasks.create_task(watch_memory(gateway, load, begin, end), name="memory")
    return load


async def camera(
    url: str, pictures: list[bytes], load: Load, number: int, begin: float, end: float
) -> None:
    loop = asyncio.get_running_loop()
    await asyncio.sleep(number / FPS / STREAMS)  # cameras are not in step with one another
    source = frames_from_bytes(pictures, fps=FPS, loop=True)
    async with connect(url) as client:
        stream = client.stream_frames(
            source, model="centerface", policy="latest", deadline_ms=DEADLINE_MS
        )
        async for result in stream:
            now = loop.time()
            if now >= end:
                source.stop()  # the stream ends by itself: every receipt is awaited
            elif now >= begin:
                load.ages_s[number].append(result.latency_s)
        load.statistics.append(stream.statistics)


async def watch_memory(gateway: GatewayProcess, load: Load, begin: float, end: float) -> None:
    loop = asyncio.get_running_loop()
    await asyncio.sleep(max(0.0, begin - loop.time()))
    while loop.time() < end:
        load.gateway_mb.append(machine.rss_megabytes(gateway.pid))
        load.worker_mb.append(sum(map(machine.rss_megabytes, gateway.worker_pids)))
        await asyncio.sleep(1.0)


def growth(samples: list[float]) -> float:
    """Median of the last minute minus median of the first, MB."""
    return statistics.median(samples[-60:]) - statistics.median(samples[:60])


def report(load: Load, capacities: list[float], measured_s: float) -> None:
    capacity = statistics.mean(capacities)
    ages_ms = [age * 1000 for ages in load.ages_s for age in ages]
    rates = [len(ages) / measured_s for ages in load.ages_s]
    fair = sum(rates) / STREAMS
    adds_up = all(counts.receipts_add_up for counts in load.statistics)
    print("one-stream capacity   {:.2f} before, {:.2f} after, results/s".format(*capacities))
    print(f"overload              {sum(rates):.2f} results/s in {STREAMS} streams")
    print(f"per stream            {machine.spread(rates)} results/s")
    print(
        "age from capture      "
        + ", ".join(f"p{p} {machine.percentile(ages_ms, p / 100):.0f} ms" for p in (50, 95, 99))
    )
    print(f"gateway memory        {machine.spread(load.gateway_mb, 1)} MB")
    print(f"worker memory         {machine.spread(load.worker_mb, 1)} MB")
    print(f"receipts add up       {'yes' if adds_up else 'NO'}")
    machine.print_result(
        age_p99_ms=machine.percentile(ages_ms, 0.99),
        capacity_ratio=sum(rates) / capacity,
        worst_share=max(abs(rate / fair - 1.0) for rate in rates),
        gateway_growth_mb=growth(load.gateway_mb),
        worker_growth_mb=growth(load.worker_mb),
        receipts_add_up=int(adds_up),
    )


if __name__ == "__main__":
    main()
