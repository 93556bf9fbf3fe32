"""What the policy promises, each as a figure: used by the bench and by its tests."""

from __future__ import annotations

import asyncio
import itertools
import random
from collections.abc import Iterator
from dataclasses import dataclass

from engine.types import Item, LaneSpec, Outcome, Policy, Progress, Result
from loadtest.batching.fixed_size import Seconds, on_time_with_fixed_size
from loadtest.batching.virtual import (
    SIZES,
    WINDOW_S,
    Device,
    in_virtual_time,
    jain,
    poisson,
    regular,
    until,
)

DEADLINE_S = 0.050
NUM_LANES = 64


@dataclass(frozen=True, slots=True, kw_only=True)
class Learned:
    """Answers in time per second at one load."""

    offered_per_s: float
    learned_per_s: float
    best_size: int  # of the fixed sizes
    best_per_s: float

    @property
    def ratio(self) -> float:
        return self.learned_per_s / self.best_per_s


def learned_batch(run_s: Seconds, per_second: float, seconds: float, seed: int = 1) -> Learned:
    """The policy, which is told nothing, beside the best of the fixed sizes."""
    arrivals = until(poisson(per_second, seed), seconds)

    async def learn() -> int:
        device = Device(run_s)
        for lane in range(NUM_LANES):
            times = iter(arrivals[lane::NUM_LANES])
            device.stream(times, deadline_s=DEADLINE_S, policy=Policy.FIFO, capacity=32)
        await device.run(seconds)
        return device.results

    fixed = {
        size: on_time_with_fixed_size(
            arrivals, size, run_s, deadline_s=DEADLINE_S, window_s=WINDOW_S
        )
        for size in SIZES
    }
    best_size = max(fixed, key=lambda size: fixed[size])
    return Learned(
        offered_per_s=per_second,
        learned_per_s=in_virtual_time(learn) / seconds,
        best_size=best_size,
        best_per_s=fixed[best_size] / seconds,
    )


def closed_loop_per_s(
    run_s: Seconds, clients: int, seconds: float, *, ceiling: int = 64, is_warm: bool = True
) -> float:
    """Answers per second when every client waits for its answer before it asks again."""

    async def ask() -> float:
        device = Device(run_s, ceiling=ceiling, is_warm=is_warm)
        loop = asyncio.get_running_loop()
        ids, results = itertools.count(), 0

        def answer(item_id: int, outcome: Progress | Outcome) -> None:
            nonlocal results
            if loop.time() < seconds:
                results += isinstance(outcome, Result)
                loop.call_soon(lane.offer, Item(id=next(ids), payload=b""))

        spec = LaneSpec(model="virtual", policy=Policy.FIFO, capacity=clients)
        lane = device.batcher.open_lane(spec, answer)
        for _ in range(clients):
            lane.offer(Item(id=next(ids), payload=b""))
        await device.drain()
        return results / seconds

    return in_virtual_time(ask)


def settled_size(run_s: Seconds, seconds: float, *, is_warm: bool = True) -> int:
    """The batch size in use at the end of a saturated run."""

    async def run() -> int:
        device = Device(run_s, is_warm=is_warm)
        for lane in range(NUM_LANES):
            device.stream(regular(5.0, lane * 0.003))
        await device.run(seconds)
        return device.batch_sizes[-1]

    return in_virtual_time(run)


@dataclass(frozen=True, slots=True, kw_only=True)
class Fairness:
    """``lost`` of the modest streams; ``jain`` over results by weight of the saturated ones."""

    lost: int
    greedy_per_s: float
    jain: float


def fairness(seconds: float) -> Fairness:
    """15 cameras of 5 fps and one of 300; then eight greedy streams of different weights."""

    async def cameras() -> tuple[int, float]:
        device = Device(lambda size: 0.010 * size, ceiling=8)
        for number in range(15):
            device.stream(regular(5.0, number * 0.0133), deadline_s=1.0)
        greedy = device.stream(regular(300.0), deadline_s=1.0)
        await device.run(seconds)
        lost = sum(stream.offered - stream.results for stream in device.streams[:15])
        return lost, greedy.results / seconds

    async def weights() -> float:
        device = Device(lambda size: 0.005 * size, ceiling=8)
        chosen = [1.0, 1.0, 2.0, 2.0, 3.0, 4.0, 5.0, 8.0]
        for number, weight in enumerate(chosen):
            device.stream(regular(100.0 + number), weight=weight, deadline_s=1.0)
        await device.run(seconds)
        shares = [s.results / w for s, w in zip(device.streams, chosen, strict=True)]
        return jain(shares)

    lost, greedy_per_s = in_virtual_time(cameras)
    return Fairness(lost=lost, greedy_per_s=greedy_per_s, jain=in_virtual_time(weights))


def patient_share(seconds: float) -> float:
    """Results ÷ frames of a stream with 2 s deadlines beside saturating ones with 100 ms."""

    async def run() -> float:
        device = Device(lambda size: 0.005 + 0.005 * size, ceiling=8)
        patient = device.stream(regular(10.0), deadline_s=2.0, policy=Policy.FIFO, capacity=32)
        for number in range(10):
            device.stream(regular(60.0, number * 0.001), deadline_s=0.100)
        await device.run(seconds)
        return patient.results / patient.offered

    return in_virtual_time(run)


def bursts(seed: int) -> Iterator[float]:
    """Silence, then some frames at once or nearly so."""
    generator, now = random.Random(seed), 0.0
    while True:
        now += generator.expovariate(2.0)
        for _ in range(generator.randrange(1, 20)):
            now += generator.choice((0.0, 0.001, 0.004))
            yield now


def longest_idle_wait_s(seconds: float, *, workers: int = 2, seed: int = 1) -> float:
    """The longest that work waited while a worker was idle, under bursts with deadlines."""

    async def run() -> float:
        device = Device(lambda size: 0.005 + 0.001 * size, ceiling=16, workers=workers)
        for number in range(12):
            device.stream(
                bursts(seed + number),
                deadline_s=(0.030, 0.100, 1.0)[number % 3],
                policy=(Policy.LATEST, Policy.FIFO)[number % 2],
                capacity=(1, 16)[number % 2],
            )
        watch = IdleWatch(device, seconds)
        await device.run(seconds)
        watch.note()
        return watch.longest_s

    return in_virtual_time(run)


class IdleWatch:
    """Looks every millisecond whether work waits while a worker has nothing."""

    STEP_S = 0.001

    def __init__(self, device: Device, until: float) -> None:
        self.longest_s = 0.0
        self._device = device
        self._loop = asyncio.get_running_loop()
        self._since: float | None = None
        self._num_batches = 0
        self._until = until
        self._loop.call_at(0.0, self._look)

    def note(self) -> None:
        now = self._loop.time()
        executor = self._device.executor
        is_idle = executor.idle_workers > 0 and self._device.batcher.num_queued > 0
        if len(executor.batches) > self._num_batches:  # what waits now is not what waited then
            self._num_batches, self._since = len(executor.batches), None
        if is_idle and self._since is None:
            self._since = now
        if self._since is not None:
            self.longest_s = max(self.longest_s, now - self._since)
        if not is_idle:
            self._since = None

    def _look(self) -> None:
        self.note()
        if self._loop.time() < self._until:
            self._loop.call_later(self.STEP_S, self._look)


def cold_start_share(seconds: float) -> float:
    """Answers ÷ what the device could do when five batches' worth waits at a start that has
    measured nothing, and its first run is slow."""

    async def run() -> float:
        loop = asyncio.get_running_loop()

        def run_s(size: int) -> float:
            is_slow = loop.time() < 1.0 and not device.results
            return 0.020 + 0.001 * size + (1.0 - loop.time() if is_slow else 0.0)

        device = Device(run_s, ceiling=16, is_warm=False)
        for number in range(16):
            device.stream(regular(40.0, number * 0.001), deadline_s=0.250)
        await device.run(seconds)
        return device.results / ((seconds - 1.0) * 16 / 0.036)

    return in_virtual_time(run)
