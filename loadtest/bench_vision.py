"""The vision engine as a whole: beside a bare loop and its peers, on large pictures, overloaded.

1. CenterFace, 320x256 JPEG, eight clients. Each side lives wholly on core 0, decoding included:
   ours is gateway and worker together. The generator has core 1. Sides run alternately, and those
   that are not measured are stopped.
2. 1080p JPEG and a light model, on both cores, beside a loop that decodes and then runs. Neither
   decodes at a smaller scale.
3. Eight cameras bring three times what was answered in 1, and only the latest frame counts; peers
   get the same requests.

    python -m loadtest.bench_vision [--rounds 7] [--seconds 2] [--no-peers]
"""

from __future__ import annotations

import argparse
import asyncio
import os
import statistics
import tempfile
from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path

from engine.models.store import ModelStore
from loadtest import machine
from loadtest.bare_process import BareProcess
from loadtest.gateway_process import GatewayProcess
from loadtest.pictures import encoded_frames
from loadtest.vision.load import CLIENTS, Answers, ask_gateway, ask_peer
from loadtest.vision.peer import PATHS, Peer, serving

CORE, GENERATOR_CORE = 0, 1
PEER_SIZES = (1, 8, 32)
OVERLOAD = 3.0
DEADLINE_MS = 300.0
FACES = "[models.centerface]\nworkers = 1\nthreads = 1\n"
# A worker per core, each decoding and running by itself: nothing waits for anything.
CLASSES = "[models.efficientnet-lite0]\nworkers = 2\nthreads = 1\n"
LIGHT_MODEL = "efficientnet-lite0"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--seconds", type=float, default=2.0, help="of one measurement")
    parser.add_argument("--overload-seconds", type=float, default=20.0)
    parser.add_argument("--no-peers", action="store_true")
    environments = Path(tempfile.gettempdir()) / "clawstream-peers"
    parser.add_argument("--environments", type=Path, default=environments)
    arguments = parser.parse_args()
    print(machine.describe())
    store = ModelStore()
    clip = store.pull_clip("face")
    small = encoded_frames(clip, width=320, height=256, count=64)
    large = encoded_frames(clip, width=1920, height=1080, count=16)
    names = [] if arguments.no_peers else [(peer, size) for peer in PATHS for size in PEER_SIZES]
    faces = Path(store.pull("centerface").files["model"])
    with ExitStack() as stack:
        peers = [
            stack.enter_context(serving(name, size, faces, arguments.environments, core=CORE))
            for name, size in names
        ]
        os.sched_setaffinity(0, {GENERATOR_CORE})
        with GatewayProcess(FACES) as gateway:
            machine.pin([gateway.pid, *gateway.worker_pids], CORE)
            with BareProcess(faces, small, core=CORE) as bare:
                figures = compare(bare, gateway, peers, small, arguments.rounds, arguments.seconds)
            capacity = figures["ours_fps"]
            figures |= overload(gateway, peers, small, capacity, arguments.overload_seconds)
    classes = Path(store.pull(LIGHT_MODEL).files["model"])
    figures |= compare_large(classes, large, arguments.rounds, arguments.seconds)
    machine.print_result(**figures)


def compare(
    bare: BareProcess,
    gateway: GatewayProcess,
    peers: Sequence[Peer],
    pictures: list[bytes],
    rounds: int,
    seconds: float,
) -> dict[str, float]:
    """Medians of alternating rounds."""
    rates: dict[str, list[float]] = {}
    ratios: list[float] = []
    for _ in range(rounds):
        bare_rate = bare.measure(seconds)
        ours = asyncio.run(ask_gateway(gateway.url, pictures, seconds, model="centerface")).per_s
        rates.setdefault("bare loop", []).append(bare_rate)
        rates.setdefault("ours", []).append(ours)
        ratios.append(ours / bare_rate)
        for peer in peers:
            with peer.awake():
                answers = asyncio.run(ask_peer(peer, pictures, seconds))
            rates.setdefault(_label(peer), []).append(answers.per_s)
    print(f"\nCenterFace, {CLIENTS} clients, answers/s on one core")
    for label, values in rates.items():
        print(f"  {label:18} {machine.spread(values)}")
    print(f"  ours / bare loop   {machine.spread(ratios, 3)}")
    medians = {label: statistics.median(values) for label, values in rates.items()}
    figures = {"ours_fps": medians["ours"], "bare_ratio": statistics.median(ratios)}
    if peers:
        best = max(map(_label, peers), key=medians.__getitem__)
        pairs = [a / b for a, b in zip(rates["ours"], rates[best], strict=True)]
        print(f"  ours / {best:11} {machine.spread(pairs, 3)}")
        figures["best_peer_ratio"] = statistics.median(pairs)
    return figures


def overload(
    gateway: GatewayProcess,
    peers: Sequence[Peer],
    pictures: list[bytes],
    capacity: float,
    seconds: float,
) -> dict[str, float]:
    """Three times as much as can be answered."""
    fps = OVERLOAD * capacity / CLIENTS
    ours = asyncio.run(
        ask_gateway(
            gateway.url, pictures, seconds, model="centerface", fps=fps, deadline_ms=DEADLINE_MS
        )
    )
    print(f"\n{OVERLOAD:g} x overload, {CLIENTS} cameras of {fps:.1f} fps, age of answers")
    _print_ages("ours", ours)
    for peer in peers:
        with peer.awake():
            _print_ages(
                _label(peer), asyncio.run(ask_peer(peer, pictures, min(seconds, 6.0), fps=fps))
            )
    p99_s = machine.percentile(ours.ages_s, 0.99)
    return {
        "overload_age_over_deadline_p99": p99_s * 1000 / DEADLINE_MS,
        "overload_capacity_ratio": ours.per_s / capacity,
    }


def compare_large(
    model: Path, pictures: list[bytes], rounds: int, seconds: float
) -> dict[str, float]:
    """Large pictures, on all cores."""
    os.sched_setaffinity(0, range(os.cpu_count() or 1))
    ratios: list[float] = []
    loop_rates: list[float] = []
    our_rates: list[float] = []
    with (
        GatewayProcess(CLASSES) as gateway,
        BareProcess(model, pictures, core=None, loop="classifier") as loop,
    ):
        for _ in range(rounds):
            loop_rates.append(loop.measure(seconds))
            answers = asyncio.run(ask_gateway(gateway.url, pictures, seconds, model=LIGHT_MODEL))
            our_rates.append(answers.per_s)
            ratios.append(our_rates[-1] / loop_rates[-1])
    print("\n1080p and a light model, answers/s on all cores, generator included")
    print(f"  decode, then run   {machine.spread(loop_rates)}")
    print(f"  ours               {machine.spread(our_rates)}")
    print(f"  ratio              {machine.spread(ratios, 3)}")
    return {"large_ratio": statistics.median(ratios)}


def _label(peer: Peer) -> str:
    return f"{peer.name} batch {peer.batch_size}"


def _print_ages(label: str, answers: Answers) -> None:
    if not answers.ages_s:
        print(f"  {label:18} no answer")
        return
    ages = [f"p{p} {machine.percentile(answers.ages_s, p / 100) * 1000:.0f} ms" for p in (50, 99)]
    print(f"  {label:18} {answers.per_s:.1f} answers/s, {', '.join(ages)}", flush=True)


if __name__ == "__main__":
    main()
