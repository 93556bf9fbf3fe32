"""More urgent work than there is time for: do the lower classes start within their ageing bounds?

On the real model, int8, core 0, one thread, through the runner. The rate at which urgent requests
(64 tokens in, 32 out) are served alone is measured first; then they arrive at 110 % of it, behind
a backlog, and every few seconds one request of each lower class arrives too. The clock counts the
time that this one thread computes; waits for an arrival are jumped over.

    python -m loadtest.bench_llm_ageing [--seconds 60]
"""

from __future__ import annotations

import argparse
import os
import random
import statistics

from engine.config import LlmConfig
from loadtest import machine
from loadtest.local_engine import LocalEngine, SkippingClock, Told, open_model

PROMPT_TOKENS, OUTPUT_TOKENS = 64, 32
OVERLOAD = 1.1
BACKLOG = 16  # urgent requests before the first of a lower class
EVERY_S = 4.0  # one of each lower class
MAX_WAIT_MS = 3000.0
BOUNDS_S = {1: MAX_WAIT_MS * 2 / 3000, 2: MAX_WAIT_MS / 1000}  # by rank
WORDS = (1000, 40_000)  # token ids of ordinary words


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--seconds", type=float, default=60.0, help="of overload")
    arguments = parser.parse_args()
    os.sched_setaffinity(0, {0})
    print(machine.describe())
    config = LlmConfig(
        weights="int8",
        threads=1,
        max_batch_size=4,
        max_wait_ms=MAX_WAIT_MS,
        kv_cache_bytes=512 << 20,
        prefix_cache=False,
        speculative_tokens=0,
    )
    clock = SkippingClock()
    bench = Bench(LocalEngine(open_model(config), config, clock=clock), clock)
    requests_per_s = bench.measure_capacity()
    print(f"{requests_per_s:.2f} urgent requests/s are served; {OVERLOAD:.0%} of that arrive")
    lower = bench.overload(OVERLOAD * requests_per_s, arguments.seconds)
    figures: dict[str, float | int | str] = {"urgent_waiting": bench.num_waiting}
    for rank, bound_s in BOUNDS_S.items():
        waits_s = [started_after_s(told) for told in lower if told.sequence.rank == rank]
        print(
            f"class {rank}: {len(waits_s)} requests started after "
            f"{statistics.median(waits_s):.2f} s, at most {max(waits_s):.2f}; bound {bound_s:g} s"
        )
        figures[f"class_{rank}_start_max_ratio"] = max(waits_s) / bound_s
    machine.print_result(**figures)


class Bench:
    """One engine, first at its capacity, then beyond it."""

    def __init__(self, engine: LocalEngine, clock: SkippingClock) -> None:
        self._engine = engine
        self._clock = clock
        self._dice = random.Random(5)
        self.num_waiting = 0  # urgent requests when the overload ended

    def measure_capacity(self, count: int = 32) -> float:
        """Urgent requests per second when there are always more."""
        began = self._clock()
        for _ in range(count):
            self._submit(0)
        self._engine.run()
        return count / (self._clock() - began)

    def overload(self, requests_per_s: float, seconds: float) -> list[Told]:
        """The requests of the lower classes, all of them started."""
        lower: list[Told] = []
        for _ in range(BACKLOG):
            self._submit(0)
        began = self._clock()
        next_urgent, next_lower = began, began + EVERY_S
        while (now := self._clock()) < began + seconds or not all(map(has_started, lower)):
            while next_urgent <= now:
                self._submit(0)
                next_urgent += self._dice.expovariate(requests_per_s)
            if next_lower <= now < began + seconds:
                lower += [self._submit(rank) for rank in BOUNDS_S]
                next_lower += EVERY_S
            if self._engine.runner.is_idle:
                self._clock.skip_to(next_urgent)
            self._engine.step()
        self.num_waiting = self._engine.scheduler.statistics().waiting
        return lower

    def _submit(self, rank: int) -> Told:
        prompt = [self._dice.randint(*WORDS) for _ in range(PROMPT_TOKENS)]
        return self._engine.submit(prompt, OUTPUT_TOKENS, rank=rank)


def has_started(told: Told) -> bool:
    return told.generation.started_at is not None


def started_after_s(told: Told) -> float:
    assert told.generation.started_at is not None
    return told.generation.started_at - told.sequence.arrived_at


if __name__ == "__main__":
    main()
