"""The gateway's own ceiling: frames per second through one gateway process, with no model behind.

The gateway has core 0; the generator and the worker, which answers ``{}``, share core 1. Streams
are lossless, so that credit alone says how fast they are. Processor time per frame is that of each
process, user and kernel; where the gateway spends it is told by a sampling profiler in a run of its
own (py-spy), by the package of the innermost function of ours.

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

import psutil

from loadtest import machine
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
    costs: dict[int, list[tuple[float, float, Answered]]] = {streams: [] for streams in STREAMS}
    for _ in range(rounds):
        for streams in STREAMS:
            options = Flood(streams=streams, payload_bytes=size, seconds=seconds, core=OTHER_CORE)
            before = cpu_seconds(gateway)
            answered = flood(gateway.url, options)
            gateway_s, worker_s = (b - a for a, b in zip(before, cpu_seconds(gateway), strict=True))
            num_frames = answered.results_per_s * (seconds + 1.0)  # the warm-up counts here, too
            costs[streams].append((gateway_s / num_frames, worker_s / num_frames, answered))
            rates[streams].append(answered.results_per_s)
    for streams in STREAMS:
        gateway_us = [gateway_s * 1e6 for gateway_s, _, _ in costs[streams]]
        worker_us = [worker_s * 1e6 for _, worker_s, _ in costs[streams]]
        load = statistics.median(each.cpu_share for _, _, each in costs[streams])
        problems = sum(each.problems for _, _, each in costs[streams])
        print(
            f"{name:>5} {streams:>3} streams  {machine.spread(rates[streams], 0)} frames/s · "
            f"gateway {machine.spread(gateway_us, 0)} us a frame, worker "
            f"{statistics.median(worker_us):.0f} us, generator {load:.0%} of its core, "
            f"{problems} problems",
            flush=True,
        )
    return {streams: statistics.median(values) for streams, values in rates.items()}


def cpu_seconds(gateway: GatewayProcess) -> tuple[float, float]:
    """Of the gateway and of its workers, since they began."""
    own = psutil.Process(gateway.pid).cpu_times()
    workers = [psutil.Process(pid).cpu_times() for pid in gateway.worker_pids]
    return own.user + own.system, sum(each.user + each.system for each in workers)


def print_hops(gateway: GatewayProcess, name: str, size: int, seconds: float) -> None:
    """The gateway's processor time of a frame by package, under the same load."""
    options = Flood(streams=MAIN_STREAMS, payload_bytes=size, seconds=seconds, core=OTHER_CORE)
    before, _ = cpu_seconds(gateway)
    with ThreadPoolExecutor(1, thread_name_prefix="load") as load:
        answered = load.submit(flood, gateway.url, options)
        counts = sample_hops(gateway.pid, seconds)
        num_frames = answered.result().results_per_s * (seconds + 1.0)
    after, _ = cpu_seconds(gateway)
    frame_us = (after - before) * 1e6 / num_frames
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
