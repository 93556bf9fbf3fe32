"""Continuous batching against static batching: the same model code, the same requests.

80 % of the requests ask for fewer than 128 tokens and 20 % for more than 512, after prompts of 32.
Static batching takes up to so many requests in order of arrival, computes them as one padded batch
and takes the next when the longest is done; a row that is done keeps computing, and is answered
with its batch, as ``generate`` returns. How many is what serves most requests per second of
``STATIC_SIZES``, by prediction; continuous batching has ``--slots``. (``streamed`` counts to a
row's own last token instead: static batching that streams.) Both sides run the int8 model on core 0
with one thread, without text, prefix hits or look-ahead. The clock counts the time that this one
thread computes; waits for an arrival are jumped over.

- backlog: everything is there at once; requests per second.
- poisson: arrivals at 70 % of what static batching did; mean latency.
- memory: how many sequences run, and finish, in a cache that holds ``RESERVED`` of 2,048 tokens.

    python -m loadtest.bench_llm_static [--parts backlog poisson memory] [--backlog 100]
"""

from __future__ import annotations

import argparse
import os
import random
import statistics
import time
from collections.abc import Sequence
from dataclasses import replace
from itertools import accumulate
from typing import NamedTuple

import numpy as np
import torch

from engine.config import LlmConfig
from engine.llm.model import PagedModel, RowGroup
from engine.llm.request import Sampling
from engine.llm.sampler import SampleRow, sample
from loadtest import machine
from loadtest.local_engine import LocalEngine, SkippingClock, Told, open_model

PROMPT_TOKENS = 32
SHORT_OUTPUT = (16, 127)
LONG_OUTPUT = (513, 640)
LONG_SHARE = 0.2
LOAD = 0.7  # of static batching's capacity
RESERVED = 4
RESERVED_TOKENS = 2048
MEMORY_SLOTS = 32
WORDS = (1000, 40_000)  # token ids of ordinary words
PARTS = ("backlog", "poisson", "memory")
STATIC_SIZES = (1, 2, 4, 8, 16)
TIMED_LENGTHS = (PROMPT_TOKENS, 128, 256, 448, 672)  # tokens a row; between them costs are linear
TIMED_STEPS = 15


class Request(NamedTuple):
    prompt_ids: list[int]
    num_output: int
    arrives_at: float


class Served(NamedTuple):
    """How one side did; seconds from each request's arrival."""

    latencies_s: list[float]  # until it is answered
    streamed_s: list[float]  # until its last token is there
    elapsed_s: float

    @property
    def requests_per_s(self) -> float:
        return len(self.latencies_s) / self.elapsed_s


class Occupied(NamedTuple):
    """One step's use of the cache."""

    num_running: int
    has_waiting: bool
    waste: float


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--parts", nargs="+", choices=PARTS, default=list(PARTS))
    parser.add_argument("--backlog", type=int, default=100, help="requests")
    parser.add_argument("--poisson", type=int, default=60, help="requests")
    parser.add_argument("--slots", type=int, default=16, help="of continuous batching")
    arguments = parser.parse_args()
    os.sched_setaffinity(0, {0})
    print(machine.describe())
    config = LlmConfig(
        weights="int8",
        threads=1,
        max_batch_size=max(arguments.slots, MEMORY_SLOTS),
        max_seq_length=RESERVED_TOKENS,
        kv_cache_bytes=1 << 30,
        prefix_cache=False,
        speculative_tokens=0,
    )
    bench = Bench(open_model(config), config, arguments.slots)
    figures: dict[str, float | int | str] = {"slots": arguments.slots}
    if {"backlog", "poisson"} & set(arguments.parts):
        size, static_rps = find_best_size(bench, make_requests(arguments.backlog, seed=1))
        figures["static_size"] = size
        if "backlog" in arguments.parts:
            static_rps = compare_backlog(bench, size, arguments.backlog, figures)
        if "poisson" in arguments.parts:
            compare_poisson(bench, size, arguments.poisson, static_rps, figures)
    if "memory" in arguments.parts:
        fill_memory(bench, arguments.backlog, figures)
    machine.print_result(**figures)


def find_best_size(bench: Bench, requests: Sequence[Request]) -> tuple[int, float]:
    """Static batching's best size for the whole backlog, and its requests/s by prediction.

    A trial on fewer requests would flatter sizes that divide them, and all of them at every size
    take half an hour. What a step costs at a size and a length says the same in half a minute.
    """
    rates = {size: bench.predict_static_rps(requests, size) for size in STATIC_SIZES}
    tried = ", ".join(f"{size}: {rate:.3f}" for size, rate in rates.items())
    print(f"static   requests/s by size of batch, predicted: {tried}", flush=True)
    return max(rates.items(), key=lambda each: each[1])


def compare_backlog(
    bench: Bench, size: int, count: int, figures: dict[str, float | int | str]
) -> float:
    requests = make_requests(count, seed=1)
    print(describe_requests(requests))
    continuous = bench.serve_continuously(requests)
    print(f"backlog  continuous {continuous.requests_per_s:.3f} requests/s", flush=True)
    static = bench.serve_statically(requests, size)
    print(f"backlog  static     {static.requests_per_s:.3f} requests/s", flush=True)
    figures["static_rps_ratio"] = continuous.requests_per_s / static.requests_per_s
    figures["static_rps"] = static.requests_per_s
    return static.requests_per_s


def compare_poisson(
    bench: Bench,
    size: int,
    count: int,
    static_rps: float,
    figures: dict[str, float | int | str],
) -> None:
    requests = make_requests(count, seed=2, requests_per_s=LOAD * static_rps)
    continuous = bench.serve_continuously(requests)
    print(f"poisson  continuous {latency(continuous.latencies_s)}", flush=True)
    static = bench.serve_statically(requests, size)
    print(f"poisson  static     {latency(static.latencies_s)}")
    print(f"poisson  streamed   {latency(static.streamed_s)}", flush=True)
    mean_s = statistics.mean(continuous.latencies_s)
    figures["static_latency_ratio"] = mean_s / statistics.mean(static.latencies_s)
    figures["streamed_latency_ratio"] = mean_s / statistics.mean(static.streamed_s)


def latency(values_s: Sequence[float]) -> str:
    p95_s = machine.percentile(values_s, 0.95)
    return f"latency mean {statistics.mean(values_s):.2f} s, p95 {p95_s:.2f} s"


def fill_memory(bench: Bench, count: int, figures: dict[str, float | int | str]) -> None:
    steps, told = bench.fill_cache(make_requests(count, seed=3))
    crowded = [step.num_running for step in steps if step.has_waiting]
    waste = statistics.mean(step.waste for step in steps)
    print(
        f"memory   {statistics.mean(crowded):.1f} sequences run at a time (most {max(crowded)}) "
        f"where {RESERVED} reservations fit; waste {waste:.1%}; "
        f"{sum(bool(each.reason) for each in told)} of {count} finish, "
        f"{sum(each.sequence.num_preemptions for each in told)} preemptions"
    )
    figures["memory_ratio"] = statistics.mean(crowded) / RESERVED
    figures["waste"] = waste


class Bench:
    """Serves the same requests in either way, with one model in memory."""

    def __init__(self, model: PagedModel, config: LlmConfig, slots: int) -> None:
        self._model = model
        self._config = config
        self._slots = slots

    def serve_continuously(self, requests: Sequence[Request]) -> Served:
        clock = SkippingClock()
        engine = self._engine(self._slots, clock)
        began = clock()
        told: list[Told] = []
        while len(told) < len(requests) or not engine.runner.is_idle:
            if engine.runner.is_idle:
                clock.skip_to(began + requests[len(told)].arrives_at)
            submit_arrived(engine, requests, told, clock() - began)
            engine.step()
        latencies_s = [
            each.told_at[-1] - began - request.arrives_at
            for each, request in zip(told, requests, strict=True)
        ]
        return Served(latencies_s, latencies_s, clock() - began)

    def serve_statically(self, requests: Sequence[Request], size: int) -> Served:
        clock = SkippingClock()
        began = clock()
        latencies_s: list[float] = []
        streamed_s: list[float] = []
        while len(latencies_s) < len(requests):
            rest = requests[len(latencies_s) :]
            clock.skip_to(began + rest[0].arrives_at)
            now = clock() - began
            batch = [each for each in rest[:size] if each.arrives_at <= now]
            ended_at = StaticBatch(self._model, batch).run(clock)
            now = clock() - began
            latencies_s += [now - request.arrives_at for request in batch]
            streamed_s += [
                at - began - request.arrives_at for at, request in zip(ended_at, batch, strict=True)
            ]
        return Served(latencies_s, streamed_s, clock() - began)

    def predict_static_rps(self, requests: Sequence[Request], size: int) -> float:
        """What ``serve_statically`` would do with a backlog, from measured steps."""
        batch = StaticBatch(self._model, requests[:size], TIMED_LENGTHS[-1])
        costs_s = [batch.time_step(length) for length in TIMED_LENGTHS]
        elapsed_s = 0.0
        for first in range(0, len(requests), size):
            longest = max(request.num_output for request in requests[first : first + size])
            lengths = np.arange(PROMPT_TOKENS, PROMPT_TOKENS + longest)
            elapsed_s += float(np.interp(lengths, TIMED_LENGTHS, costs_s).sum())
        return len(requests) / elapsed_s

    def fill_cache(self, requests: Sequence[Request]) -> tuple[list[Occupied], list[Told]]:
        """All requests at once in the memory of ``RESERVED`` reservations."""
        num_blocks = RESERVED * RESERVED_TOKENS // self._model.block_size
        clock = SkippingClock()
        engine = self._engine(MEMORY_SLOTS, clock, num_blocks)
        told = [engine.submit(each.prompt_ids, each.num_output) for each in requests]
        steps = []
        while not engine.runner.is_idle:
            engine.step()
            gauges = engine.scheduler.statistics()
            steps.append(Occupied(gauges.running, gauges.waiting > 0, gauges.fragmentation))
        return steps, told

    def _engine(
        self, slots: int, clock: SkippingClock, num_blocks: int | None = None
    ) -> LocalEngine:
        config = replace(self._config, max_batch_size=slots)
        return LocalEngine(self._model, config, num_blocks=num_blocks, clock=clock)


def submit_arrived(
    engine: LocalEngine, requests: Sequence[Request], told: list[Told], now: float
) -> None:
    while len(told) < len(requests) and requests[len(told)].arrives_at <= now:
        request = requests[len(told)]
        told.append(engine.submit(request.prompt_ids, request.num_output))


class StaticBatch:
    """One padded batch; every row computes until the longest is done."""

    def __init__(
        self, model: PagedModel, requests: Sequence[Request], longest: int | None = None
    ) -> None:
        """``longest``: tokens a row has room for; by default what the requests need."""
        self._model = model
        self._requests = requests
        longest = longest or PROMPT_TOKENS + max(request.num_output for request in requests)
        blocks_each = -(-longest // model.block_size)
        self._blocks = [
            range(row * blocks_each, (row + 1) * blocks_each) for row in range(len(requests))
        ]

    def run(self, clock: SkippingClock) -> list[float]:
        """When each request got its last token."""
        ended_at = [0.0] * len(self._requests)
        tokens = self._step([request.prompt_ids for request in self._requests], 0)
        for count in range(1, max(request.num_output for request in self._requests) + 1):
            now = clock()
            for row, request in enumerate(self._requests):
                if request.num_output == count:
                    ended_at[row] = now
            if 0.0 in ended_at:
                tokens = self._step([[token] for token in tokens], PROMPT_TOKENS + count - 1)
        return ended_at

    def time_step(self, length: int) -> float:
        """Seconds of computing one token for every row, after ``length - 1`` others; a median."""
        rows = [[request.prompt_ids[0]] for request in self._requests]
        times_s = []
        for _ in range(TIMED_STEPS):
            began = time.process_time()
            self._step(rows, length - 1)
            times_s.append(time.process_time() - began)
        return statistics.median(times_s)

    def _step(self, rows: Sequence[list[int]], start: int) -> list[int]:
        groups = [
            RowGroup(
                token_ids=row,
                start_position=start,
                blocks=blocks,
                num_logits=1,
                is_prompt=len(row) > 1,
            )
            for row, blocks in zip(rows, self._blocks, strict=True)
        ]
        greedy = SampleRow(sampling=Sampling(temperature=0.0), seed=0, position=0)
        return sample(self._model.execute(groups), [greedy] * len(groups))


def make_requests(count: int, *, seed: int, requests_per_s: float | None = None) -> list[Request]:
    """The same for the same arguments; exactly one in five is long. No rate: all at once."""
    dice = random.Random(seed)
    num_long = round(LONG_SHARE * count)
    kinds = [LONG_OUTPUT] * num_long + [SHORT_OUTPUT] * (count - num_long)
    dice.shuffle(kinds)
    gaps = [dice.expovariate(requests_per_s) if requests_per_s else 0.0 for _ in kinds]
    return [
        Request([dice.randint(*WORDS) for _ in range(PROMPT_TOKENS)], dice.randint(*kind), at)
        for kind, at in zip(kinds, accumulate(gaps), strict=True)
    ]


def describe_requests(requests: Sequence[Request]) -> str:
    lengths = [request.num_output for request in requests]
    num_long = sum(length > LONG_OUTPUT[0] - 1 for length in lengths)
    return (
        f"{len(requests)} requests, {num_long} of them long, {sum(lengths)} tokens out, "
        f"torch {torch.__version__}"
    )


if __name__ == "__main__":
    main()
