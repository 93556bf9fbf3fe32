"""The real batcher over a device of known cost, on a loop whose clock jumps."""

from __future__ import annotations

import asyncio
import itertools
import random
from collections import Counter
from collections.abc import Callable, Coroutine, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeVar

from engine.batching.batcher import BatcherLane, ModelBatcher
from engine.config import ModelConfig
from engine.errors import Overloaded
from engine.types import Item, LaneSpec, Outcome, Policy, Priority, Progress, Result
from loadtest.batching.fixed_size import Seconds
from tests.fakes.executor import FakeExecutor
from tests.fakes.virtual_time import VirtualTimeLoop, run_until

T = TypeVar("T")
WINDOW_S = 0.005
SIZES = (1, 2, 4, 8, 16, 32, 64)


def gpu_like(size: int) -> float:
    """Company pays: 5 ms and 0.5 ms an item."""
    return 0.005 + 0.0005 * size


def cpu_like(size: int) -> float:
    """Company pays nothing: 20 ms an item."""
    return 0.020 * size


@dataclass(eq=False)
class Stream:
    """One camera or client: when it offers, and what it got."""

    lane: BatcherLane
    arrivals: Iterator[float]
    deadline_s: float | None
    offered: int = 0
    refused: int = 0
    results: int = 0
    outcomes: Counter[str] = field(default_factory=Counter)
    ages_s: list[float] = field(default_factory=list)


class Device:
    """A batcher and its workers; ``ceiling`` is ``max_batch_size``. ``is_warm`` = False leaves out
    the warm-up, so that the sizes are learned from live batches."""

    def __init__(
        self,
        run_s: Seconds,
        *,
        ceiling: int = 64,
        workers: int = 1,
        prefetch: int = 1,
        window_s: float = WINDOW_S,
        is_warm: bool = True,
    ) -> None:
        config = ModelConfig(max_batch_size=ceiling, batch_timeout_millis=window_s * 1000)
        warm_up = {size: run_s(size) for size in SIZES if size <= ceiling} if is_warm else {}
        self.batcher = ModelBatcher("virtual", config)
        self.executor = FakeExecutor(
            self.batcher, workers=workers, prefetch=prefetch, run_s=run_s, warmup_run_s=warm_up
        )
        self.streams: list[Stream] = []
        self._ids = itertools.count()
        self._offered_at: dict[int, float] = {}
        self.batcher.start(self.executor)

    def stream(
        self,
        arrivals: Iterator[float],
        *,
        deadline_s: float | None = None,
        policy: Policy = Policy.LATEST,
        capacity: int = 1,
        weight: float = 1.0,
        priority: Priority = Priority.STANDARD,
    ) -> Stream:
        """``arrivals`` are absolute times, rising."""
        spec = LaneSpec(
            model="virtual", policy=policy, capacity=capacity, weight=weight, priority=priority
        )

        def emit(item_id: int, outcome: Progress | Outcome) -> None:
            self._take(stream, item_id, outcome)

        stream = Stream(self.batcher.open_lane(spec, emit), arrivals, deadline_s)
        self.streams.append(stream)
        return stream

    async def run(self, until: float) -> None:
        """Let every stream offer until then, and everybody be answered."""
        for stream in self.streams:
            self._schedule(stream, until)
        await run_until(until)
        await self.drain()

    async def drain(self) -> None:
        """Return once everybody is answered."""
        while self.batcher.num_in_flight:
            await run_until(asyncio.get_running_loop().time() + 1.0)
        self.batcher.check_integrity()

    @property
    def results(self) -> int:
        return sum(stream.results for stream in self.streams)

    @property
    def batch_sizes(self) -> list[int]:
        return [len(batch.works) for batch in self.executor.batches]

    def _schedule(self, stream: Stream, until: float) -> None:
        arrival = next(stream.arrivals, None)
        if arrival is not None and arrival < until:
            asyncio.get_running_loop().call_at(arrival, self._offer, stream, until)

    def _offer(self, stream: Stream, until: float) -> None:
        now = asyncio.get_running_loop().time()
        deadline = None if stream.deadline_s is None else now + stream.deadline_s
        item = Item(id=next(self._ids), payload=b"", deadline=deadline)
        stream.offered += 1
        self._offered_at[item.id] = now
        try:
            stream.lane.offer(item)
        except Overloaded:
            stream.refused += 1
            del self._offered_at[item.id]
        self._schedule(stream, until)

    def _take(self, stream: Stream, item_id: int, outcome: Progress | Outcome) -> None:
        offered_at = self._offered_at.pop(item_id)
        if isinstance(outcome, Result):
            stream.results += 1
            stream.ages_s.append(asyncio.get_running_loop().time() - offered_at)
        else:
            reason = getattr(outcome, "reason", None)
            stream.outcomes[getattr(reason, "value", type(outcome).__name__)] += 1


def regular(per_second: float, begin: float = 0.0) -> Iterator[float]:
    """A camera."""
    return (begin + number / per_second for number in itertools.count())


def poisson(per_second: float, seed: int) -> Iterator[float]:
    """Many independent callers."""
    generator, now = random.Random(seed), 0.0
    while True:
        now += generator.expovariate(per_second)
        yield now


def until(arrivals: Iterator[float], end: float) -> list[float]:
    return list(itertools.takewhile(lambda arrival: arrival < end, arrivals))


def jain(shares: Sequence[float]) -> float:
    """Fairness index: 1 when all are equal, 1/n when one has everything."""
    return sum(shares) ** 2 / (len(shares) * sum(share * share for share in shares))


def in_virtual_time(scenario: Callable[[], Coroutine[Any, Any, T]]) -> T:
    with asyncio.Runner(loop_factory=VirtualTimeLoop) as runner:
        return runner.run(scenario())
