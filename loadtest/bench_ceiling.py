"""The gateway's own ceiling: frames per second through one gateway process, with no model behind.

The gateway has core 0; the generator and the worker, which answers ``{}``, share core 1. Streams
are lossless, so that credit alone says how fast they are. Processor time per frame is that of each
process, user and kernel; where the gateway spends it is told by a sampling profiler in a run of its
own (py-spy), by the package of the innermost function of ours.

How flat that is over the number of streams is compared with a bare aiohttp echo: more sockets mean
fewer messages per read and per write, whoever reads and writes.

    python -m loadtest.bench_ceiling [--seconds 4] [--rounds 3] [--hops]
"""

from __future__ import annotations

import argparse
import statistics
import subprocess
import sys
import tempfile
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import NamedTuple

import psutil

from loadtest import machine
from loadtest.delivery.target import Target
from loadtest.frame_flood import Answered, Flood, flood
from loadtest.gateway_process import GatewayProcess

GATEWAY_CORE, OTHER_CORE = 0, 1
SIZES = {"small": 64, "40k": 40_000}
STREAMS = (1, 8, 64, 200)
MAIN_STREAMS = 8
HOPS = ("gateway/net", "gateway/wire", "gateway/session", "gateway/stream", "engine", "aiohttp")
DESCRIPTION = 'pipeline = "loadtest.null_pipeline:build"\n'


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--seconds", type=float, default=4.0, help="of each measurement")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--hops", action="store_true", help="also sample where the time goes")
    arguments = parser.parse_args()
    print(machine.describe())
    figures: dict[str, float] = {}
    with (
        tempfile.TemporaryDirectory(prefix="clawstream-") as folder,
        GatewayProcess(config(Path(folder))) as gateway,
    ):
        machine.pin([gateway.pid], GATEWAY_CORE)
        machine.pin(gateway.worker_pids, OTHER_CORE)
        for name, size in SIZES.items():
            rates = sweep(gateway, name, size, arguments.seconds, arguments.rounds)
            figures[f"null_fps_{name}"] = rates[MAIN_STREAMS]
            figures[f"null_flat_{name}"] = rates[STREAMS[-1]] / max(rates.values())
        with Target("echo") as echo:
            machine.pin([echo.pid], GATEWAY_CORE)
            figures["echo_flat"] = echo_flatness(echo, arguments.seconds, arguments.rounds)
        if arguments.hops:
            for name, size in SIZES.items():
                print_hops(gateway, name, size, arguments.seconds)
    machine.print_result(**figures)


def config(folder: Path) -> str:
    """Of a gateway with the null model, described in ``folder``."""
    model = folder / "null.onnx"
    model.write_bytes(b"")
    model.with_suffix(".toml").write_text(DESCRIPTION)
    # One stream alone sends more than a client is allowed by default.
    limits = "[limits]\nmax_messages_per_s = 100000\n"
    return f'{limits}[models.null]\npath = "{model}"\nmax_batch_size = 32\n'


def sweep(
    gateway: GatewayProcess, name: str, size: int, seconds: float, rounds: int
) -> dict[int, float]:
    """Median frames/s by number of streams; rounds alternate between them."""
    rates: dict[int, list[float]] = {streams: [] for streams in STREAMS}
    costs: dict[int, list[tuple[Spent, Answered]]] = {streams: [] for streams in STREAMS}
    for _ in range(rounds):
        for streams in STREAMS:
            options = Flood(streams=streams, payload_bytes=size, seconds=seconds, core=OTHER_CORE)
            before = cpu_seconds(gateway)
            answered = flood(gateway.url, options)
            num_frames = answered.results_per_s * (seconds + 1.0)  # the warm-up counts here, too
            after = cpu_seconds(gateway)
            spent = Spent(*(1e6 * (b - a) / num_frames for a, b in zip(before, after, strict=True)))
            costs[streams].append((spent, answered))
            rates[streams].append(answered.results_per_s)
    for streams in STREAMS:
        user_us = [spent.user for spent, _ in costs[streams]]
        system_us = [spent.system for spent, _ in costs[streams]]
        worker_us = statistics.median(spent.workers for spent, _ in costs[streams])
        load = statistics.median(each.cpu_share for _, each in costs[streams])
        problems = sum(each.problems for _, each in costs[streams])
        print(
            f"{name:>5} {streams:>3} streams  {machine.spread(rates[streams], 0)} frames/s · "
            f"gateway, us a frame: {machine.spread(user_us, 0)} and in the kernel "
            f"{machine.spread(system_us, 0)}; worker {worker_us:.0f} us, "
            f"generator {load:.0%} of its core, {problems} problems",
            flush=True,
        )
    return {streams: statistics.median(values) for streams, values in rates.items()}


def echo_flatness(echo: Target, seconds: float, rounds: int) -> float:
    """Messages/s of a bare echo on the most sockets, divided by the best on any number of them."""
    url = f"ws://127.0.0.1:{echo.port}"
    rates: dict[int, list[float]] = {streams: [] for streams in STREAMS}
    for _ in range(rounds):
        for streams in STREAMS:
            options = Flood(
                streams=streams, payload_bytes=64, seconds=seconds, core=OTHER_CORE, model=""
            )
            rates[streams].append(flood(url, options).results_per_s)
    for streams, values in rates.items():
        print(f" echo {streams:>3} sockets  {machine.spread(values, 0)} messages/s", flush=True)
    medians = [statistics.median(values) for values in rates.values()]
    return medians[-1] / max(medians)


class Spent(NamedTuple):
    """Processor time: the gateway's in user and kernel space, the workers'."""

    user: float
    system: float
    workers: float


def cpu_seconds(gateway: GatewayProcess) -> Spent:
    """Since they began."""
    own = psutil.Process(gateway.pid).cpu_times()
    workers = [psutil.Process(pid).cpu_times() for pid in gateway.worker_pids]
    return Spent(own.user, own.system, sum(each.user + each.system for each in workers))


def print_hops(gateway: GatewayProcess, name: str, size: int, seconds: float) -> None:
    """The gateway's processor time of a frame by package, under the same load."""
    options = Flood(streams=MAIN_STREAMS, payload_bytes=size, seconds=seconds, core=OTHER_CORE)
    before = cpu_seconds(gateway)
    with ThreadPoolExecutor(1, thread_name_prefix="load") as load:
        answered = load.submit(flood, gateway.url, options)
        counts = sample_hops(gateway.pid, seconds)
        num_frames = answered.result().results_per_s * (seconds + 1.0)
    after = cpu_seconds(gateway)
    spent_s = after.user + after.system - before.user - before.system
    frame_us = spent_s * 1e6 / num_frames
    total = sum(counts.values()) or 1
    hops = (f"{hop} {frame_us * count / total:.0f}" for hop, count in counts.most_common())
    print(f"{name:>5} gateway, us a frame by hop (while sampled): {', '.join(hops)}", flush=True)


def sample_hops(pid: int, seconds: float) -> Counter[str]:
    """Samples by the innermost package that is named in ``HOPS``; else by ``loop``."""
    with tempfile.NamedTemporaryFile(suffix=".txt") as out:
        subprocess.run(
            [
                str(Path(sys.executable).parent / "py-spy"),
                *("record", "--pid", str(pid), "--duration", str(round(seconds))),
                *("--rate", "200", "--format", "raw", "--full-filenames", "--output", out.name),
            ],
            capture_output=True,
            check=True,
            timeout=seconds + 60.0,
        )
        lines = Path(out.name).read_text().splitlines()
    counts: Counter[str] = Counter()
    for line in lines:
        stack, _, count = line.rpartition(" ")
        counts[_hop(stack.split(";"))] += int(count)
    return counts


def _hop(stack: list[str]) -> str:
    for call in reversed(stack):
        for hop in HOPS:
            if f"/{hop}/" in call:
                return hop
    return "loop"


if __name__ == "__main__":
    main()
