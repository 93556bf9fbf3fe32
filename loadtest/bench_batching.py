"""The batch policy: what it learns, whom it serves, and the same on a device that really sleeps.

In virtual time the real batcher meets devices of known cost (5 ms + 0.5 ms an item, where company
pays, and 20 ms an item, where it does not). Then a pipeline sleeps for as long in a real worker,
beside LitServe and Mosec, each told the batch size (1, 8, 32, 64) and the best of them taken. The
first run installs both peers, each into an environment of its own in ``--environments``.

    python -m loadtest.bench_batching [--seconds 5] [--rounds 3] [--no-peers]
"""

from __future__ import annotations

import argparse
import statistics
import tempfile
from pathlib import Path

from loadtest import machine
from loadtest.batching import scenarios
from loadtest.batching.sleeping import SleepCost, ours_per_s, peer_per_s
from loadtest.batching.virtual import cpu_like, gpu_like

CLIENTS = 128
PEER_SIZES = (1, 8, 32, 64)
PEERS = ("litserve", "mosec")
LOADS_PER_S = (1000.0, 1500.0, 2000.0, 4000.0)
GPU_LIKE = SleepCost(fixed_ms=5.0, per_item_ms=0.5)
CPU_LIKE = SleepCost(fixed_ms=0.0, per_item_ms=20.0)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--seconds", type=float, default=5.0, help="of one measurement")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--virtual-seconds", type=float, default=5.0)
    parser.add_argument("--burst-minutes", type=float, default=10.0, help="virtual")
    parser.add_argument("--no-peers", action="store_true")
    environments = Path(tempfile.gettempdir()) / "clawstream-peers"
    parser.add_argument("--environments", type=Path, default=environments)
    arguments = parser.parse_args()
    print(machine.describe())
    figures = measure_policy(arguments.virtual_seconds, arguments.burst_minutes * 60.0)
    peers = () if arguments.no_peers else PEERS
    figures |= measure_sleeping(peers, arguments.environments, arguments.seconds, arguments.rounds)
    machine.print_result(**figures)


def measure_policy(seconds: float, burst_s: float) -> dict[str, float]:
    """In virtual time: the same on every machine."""
    print(f"\nvirtual device, deadline {scenarios.DEADLINE_S * 1000:.0f} ms, answers/s in time")
    learned = [scenarios.learned_batch(gpu_like, load, seconds) for load in LOADS_PER_S]
    for each in learned:
        print(
            f"  offered {each.offered_per_s:5.0f}/s   learned {each.learned_per_s:6.0f}   "
            f"best fixed size {each.best_size:2d}: {each.best_per_s:6.0f}   {each.ratio:.3f}"
        )
    together = scenarios.closed_loop_per_s(gpu_like, CLIENTS, seconds)
    alone = scenarios.closed_loop_per_s(gpu_like, CLIENTS, seconds, ceiling=1)
    fair = scenarios.fairness(seconds=30.0)
    patient = scenarios.patient_share(seconds=30.0)
    idle_s = scenarios.longest_idle_wait_s(burst_s)
    print(f"  batched / one at a time        {together:.0f} / {alone:.0f}")
    print(f"  size where company costs       {scenarios.settled_size(cpu_like, seconds)}")
    print(f"  15 cameras beside 300 fps lose {fair.lost}; Jain by weight {fair.jain:.4f}")
    print(f"  2 s beside 100 ms deadlines    {patient:.3f} answered")
    print(f"  longest wait at an idle worker {idle_s * 1000:.1f} ms in {burst_s:.0f} s of bursts")
    return {
        "learned_batch_ratio": min(each.ratio for each in learned),
        "batched_gain": together / alone,
        "settled_size_cpu": scenarios.settled_size(cpu_like, seconds),
        "modest_lost": fair.lost,
        "jain": fair.jain,
        "patient_share": patient,
        "longest_idle_wait_ms": idle_s * 1000,
    }


def measure_sleeping(
    peers: tuple[str, ...], environments: Path, seconds: float, rounds: int
) -> dict[str, float]:
    """On the clock: medians of alternating rounds."""
    ours: list[float] = []
    theirs: dict[tuple[str, int], list[float]] = {}
    for _ in range(rounds):
        ours.append(ours_per_s(GPU_LIKE, CLIENTS, seconds))
        for peer in peers:
            for size in PEER_SIZES:
                measured = peer_per_s(peer, size, GPU_LIKE, CLIENTS, seconds, environments)
                theirs.setdefault((peer, size), []).append(measured)
    alone = ours_per_s(GPU_LIKE, CLIENTS, seconds, ceiling=1)
    print(f"\nsleeping device, {CLIENTS} clients, answers/s")
    print(f"  ours                {machine.spread(ours, 0)}; one at a time {alone:.0f}")
    figures = {"sleeping_gain": statistics.median(ours) / alone}
    for (peer, size), rates in theirs.items():
        print(f"  {peer:9} batch {size:2d}  {machine.spread(rates, 0)}")
    for peer in peers:
        best = max(statistics.median(theirs[peer, size]) for size in PEER_SIZES)
        figures[f"{peer}_ratio"] = statistics.median(ours) / best
    costly = ours_per_s(CPU_LIKE, 16, seconds)
    print(f"  20 ms an item       {costly:.1f} of 50")
    figures["sleeping_cpu_share"] = costly / 50.0
    return figures


if __name__ == "__main__":
    main()
