"""What the whole path costs: a bare inference loop against the gateway, the same pictures.

The bare loop (decode, resize, run, non-maximum suppression, one thread) has core 0. The path's
worker, with all its threads, has core 0 too; gateway and generator share core 1. Both sides get
the same pre-encoded 320x256 JPEGs. They run alternately, and the ratio is the median over the
rounds of path / bare.

    python -m loadtest.bench_path [--rounds 7] [--seconds 6]
"""

from __future__ import annotations

import argparse
import asyncio
import os
import statistics
import time
from pathlib import Path

from engine.models.store import ModelStore
from gateway.client import connect, frames_from_bytes
from loadtest import machine
from loadtest.bare_process import BareProcess
from loadtest.gateway_process import GatewayProcess
from loadtest.pictures import encoded_frames

CONFIG = """
[models.centerface]
workers = 1
threads = 1
"""
WARM_UP_RESULTS = 10


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--seconds", type=float, default=6.0)
    arguments = parser.parse_args()
    print(machine.describe())
    store = ModelStore()
    model = Path(store.pull("centerface").files["model"])
    pictures = encoded_frames(store.pull_clip("face"), width=320, height=256, count=64)
    ratios, bare_rates, path_rates = compare(model, pictures, arguments.rounds, arguments.seconds)
    print(f"bare loop   {machine.spread(bare_rates)} frames/s")
    print(f"whole path  {machine.spread(path_rates)} frames/s")
    print(f"path / bare {machine.spread(ratios, 3)}")
    machine.print_result(
        path_ratio=statistics.median(ratios),
        bare_fps=statistics.median(bare_rates),
        path_fps=statistics.median(path_rates),
        rounds=arguments.rounds,
    )


def compare(
    model: Path, pictures: list[bytes], rounds: int, seconds: float
) -> tuple[list[float], list[float], list[float]]:
    """Alternate the two sides; returns ratios, bare rates and path rates, one per round."""
    bare_rates: list[float] = []
    path_rates: list[float] = []
    with BareProcess(model, pictures, core=0) as bare, GatewayProcess(CONFIG) as gateway:
        machine.pin([gateway.pid, os.getpid()], core=1)
        machine.pin(gateway.worker_pids, core=0)
        for number in range(1, rounds + 1):
            bare_rates.append(bare.measure(seconds))
            path_rates.append(asyncio.run(measure_path(gateway.url, pictures, seconds)))
            print(f"round {number}: bare {bare_rates[-1]:.2f}, path {path_rates[-1]:.2f}")
    ratios = [path / bare for path, bare in zip(path_rates, bare_rates, strict=True)]
    return ratios, bare_rates, path_rates


async def measure_path(url: str, pictures: list[bytes], seconds: float) -> float:
    """Results per second of one saturating lossless stream."""
    source = frames_from_bytes(pictures, fps=None, loop=True)
    async with connect(url) as client:
        count, started = 0, 0.0
        async for _ in client.stream_frames(source, model="centerface", policy="lossless"):
            count += 1
            if count == WARM_UP_RESULTS:
                started = time.perf_counter()
            elif count > WARM_UP_RESULTS and time.perf_counter() - started >= seconds:
                break
        return (count - WARM_UP_RESULTS) / (time.perf_counter() - started)


if __name__ == "__main__":
    main()
