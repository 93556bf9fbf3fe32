"""What a network does on an accelerator: numerics against the CPU, then throughput by size.

For each input size and batch: ``sync`` runs one picture at a time, ``batched`` one full batch at a
time, ``pipelined`` full batches on two sessions, each with its own stream and thread. Pictures are
ready as uint8; copies in and out are part of every figure, decoding is not. What the machine lacks
is printed as skipped.

    python -m loadtest.bench_gpu [--providers cuda tensorrt] [--sizes 320x256 640x480] [--seconds 1]
"""

from __future__ import annotations

import argparse
import threading
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from engine.config import GpuConfig
from engine.errors import EngineError, StartupError
from engine.manifest import InputSpec
from engine.models.store import ModelStore, default_home
from engine.onnx.accelerated import Accelerator, open_accelerated
from engine.onnx.accuracy import relative_errors
from engine.onnx.binding import BoundSession
from engine.onnx.providers import CPU, CUDA, TENSORRT
from engine.workers.loading import warm_up_sizes
from loadtest import machine

PROVIDERS = {"cpu": (CPU,), "cuda": (CUDA, CPU), "tensorrt": (TENSORRT, CUDA, CPU)}
STREAMS = 2
MAX_ERROR = 0.01  # of the CPU's outputs; convolutions on a GPU round to TF32 by default
WARM_UP_RUNS = 3


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--providers", nargs="+", default=["cuda", "tensorrt"], choices=PROVIDERS)
    parser.add_argument("--model", type=Path, help="ONNX file; default: centerface")
    parser.add_argument("--sizes", nargs="+", default=["320x256", "640x480", "1280x736"])
    parser.add_argument("--max-batch", type=int, default=32)
    parser.add_argument("--fp16", action="store_true", help="on TensorRT")
    parser.add_argument("--seconds", type=float, default=1.0, help="for each figure")
    arguments = parser.parse_args()
    print(machine.describe())
    try:
        path = arguments.model or Path(ModelStore().pull("centerface").files["model"])
    except EngineError as error:
        print(f"skipped: everything ({error.detail})")
        return
    for provider in arguments.providers:
        gpu = GpuConfig(tensorrt_fp16=arguments.fp16 and provider == "tensorrt")
        for size in arguments.sizes:
            width, height = map(int, size.split("x"))
            try:
                rows = sweep(
                    path,
                    Accelerator(
                        providers=PROVIDERS[provider],
                        gpu=gpu,
                        sizes=tuple(warm_up_sizes(arguments.max_batch)),
                        engines=default_home() / "engines",
                    ),
                    InputSpec(width=width, height=height),
                    arguments.seconds,
                )
            except StartupError as error:
                print(f"skipped: {provider} at {size}: {error.detail}")
                continue
            show(provider, size, rows)


class Row(dict[str, float]):
    """Figures of one batch size, pictures/s but for ``batch`` and ``error``."""


def sweep(path: Path, accelerator: Accelerator, spec: InputSpec, seconds: float) -> list[Row]:
    """One row per batch size; raises ``StartupError`` when the provider does not run here, or its
    outputs are not the CPU's."""
    sessions = [open_accelerated(path, accelerator, spec) for _ in range(STREAMS)]
    for session in sessions:
        session.allow_padding()
    error = numeric_error(path, sessions[0], accelerator, spec)
    one = rate([sessions[0]], pictures(spec, 1), seconds)
    rows = []
    for size in accelerator.sizes:
        batch = pictures(spec, size)
        rows.append(
            Row(
                batch=size,
                error=error,
                sync=one,
                batched=rate(sessions[:1], batch, seconds),
                pipelined=rate(sessions, batch, seconds),
            )
        )
    return rows


def numeric_error(
    path: Path, session: BoundSession, accelerator: Accelerator, spec: InputSpec
) -> float:
    """The worst output's distance from the CPU's, relative; see ``relative_errors``."""
    on_cpu = Accelerator(
        providers=(CPU,), gpu=GpuConfig(), sizes=accelerator.sizes, engines=accelerator.engines
    )
    reference = open_accelerated(path, on_cpu, spec)
    (name,) = session.input_names
    batch = {name: np.stack(pictures(spec, min(3, accelerator.sizes[-1])))}  # 3 run padded, as 4
    error = max(relative_errors([reference.run(batch)], [session.run(batch)]).values())
    if not error <= MAX_ERROR:
        raise StartupError(f"outputs are {100 * error:.3g} % off the CPU's")
    return error


def pictures(spec: InputSpec, count: int) -> list[NDArray[np.uint8]]:
    random = np.random.default_rng(count)
    shape = (spec.height, spec.width, 3)
    return [random.integers(0, 256, shape, np.uint8) for _ in range(count)]


def rate(sessions: Sequence[BoundSession], batch: Sequence[NDArray[Any]], seconds: float) -> float:
    """Pictures per second of all sessions together, one thread each."""
    for session in sessions:
        for _ in range(WARM_UP_RUNS):
            run(session, batch)
    counts = [0] * len(sessions)
    until = time.perf_counter() + seconds

    def work(index: int) -> None:
        while time.perf_counter() < until:
            run(sessions[index], batch)
            counts[index] += len(batch)

    began = time.perf_counter()
    threads = [threading.Thread(target=work, args=(index,)) for index in range(len(sessions))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return sum(counts) / (time.perf_counter() - began)


def run(session: BoundSession, batch: Sequence[NDArray[Any]]) -> None:
    session.run({session.input_names[0]: session.stack(batch)})


def show(provider: str, size: str, rows: Sequence[Row]) -> None:
    print(f"\n{provider} {size}: {100 * rows[0]['error']:.2g} % off the CPU")
    print(f"{'batch':>6} {'sync':>10} {'batched':>10} {'pipelined':>10}  pictures/s")
    for row in rows:
        figures = " ".join(f"{row[name]:10.1f}" for name in ("sync", "batched", "pipelined"))
        print(f"{row['batch']:6.0f} {figures}")
    best = max(rows, key=lambda row: row["pipelined"])
    machine.print_result(
        provider=provider,
        size=size,
        sync_fps=best["sync"],
        batched_fps=max(row["batched"] for row in rows),
        pipelined_fps=best["pipelined"],
        error=best["error"],
    )


if __name__ == "__main__":
    main()
