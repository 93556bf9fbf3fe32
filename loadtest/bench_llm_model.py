"""The model alone, without scheduler or sockets: how long a step takes on one core.

Decode steps of 1 to 32 sequences at several contexts, and prefill of chunks with and without a
context before them; int8 against fp32, whose rounds alternate. Block tables are shuffled.

    python -m loadtest.bench_llm_model [--rounds 3] [--weights int8 fp32]
"""

from __future__ import annotations

import argparse
import os
import random
import statistics
import time
from collections.abc import Sequence
from importlib.metadata import version
from pathlib import Path

from engine.llm.model import PagedModel, RowGroup, load_model_folder
from engine.models.store import ModelStore
from loadtest import machine

MODEL = "smollm2-135m"
BLOCK_SIZE = 16
NUM_BLOCKS = 1200
BATCHES = (1, 4, 8, 16, 32)
CONTEXTS = (64, 128, 512)
CHUNKS = ((64, 0), (256, 0), (64, 1024))  # tokens, tokens before them
STEPS_PER_ROUND = 4

Steps = dict[str, list[RowGroup]]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--weights", nargs="+", default=["int8", "fp32"])
    arguments = parser.parse_args()
    os.sched_setaffinity(0, {0})
    print(f"{machine.describe()} · torch {version('torch')}")
    folder = Path(ModelStore().pull(MODEL).files["model"])
    models = {weights: open_model(folder, weights) for weights in arguments.weights}
    steps = decode_steps() | prefill_steps()
    times = measure(models, steps, arguments.rounds)
    print_table(steps, times, arguments.weights)
    first = times[arguments.weights[0]]
    machine.print_result(
        weights=arguments.weights[0],
        **{
            f"step_{batch}_ms": statistics.median(first[decode_name(batch, 128)]) * 1e3
            for batch in BATCHES
        },
        prefill_tokens_per_s=256 / statistics.median(first[prefill_name(256, 0)]),
    )


def open_model(folder: Path, weights: str) -> PagedModel:
    began = time.perf_counter()
    loaded = load_model_folder(folder, weights=weights, device="cpu", threads=1)
    print(f"{weights}: loaded in {time.perf_counter() - began:.1f} s")
    return PagedModel(loaded, NUM_BLOCKS, BLOCK_SIZE)


def decode_name(batch: int, context: int) -> str:
    return f"decode {batch:2} x 1 after {context}"


def prefill_name(num_tokens: int, context: int) -> str:
    return f"prefill 1 x {num_tokens} after {context}"


def decode_steps() -> Steps:
    """Every sequence with its last token to run, all of one length."""
    return {
        decode_name(batch, context): [
            _group(1, context - 1, table) for table in _tables(batch, context)
        ]
        for batch in BATCHES
        for context in CONTEXTS
    }


def prefill_steps() -> Steps:
    """One chunk of one prompt."""
    return {
        prefill_name(size, context): [_group(size, context, _tables(1, context + size)[0])]
        for size, context in CHUNKS
    }


def measure(
    models: dict[str, PagedModel], steps: Steps, rounds: int
) -> dict[str, dict[str, list[float]]]:
    """Seconds per step by weights and step, one median for each round."""
    times: dict[str, dict[str, list[float]]] = {name: {} for name in models}
    for _ in range(rounds):
        for step, groups in steps.items():
            for weights, model in models.items():
                seconds = _median_seconds(model, groups)
                times[weights].setdefault(step, []).append(seconds)
    return times


def print_table(
    steps: Steps, times: dict[str, dict[str, list[float]]], weights: Sequence[str]
) -> None:
    """Milliseconds (median and range) and tokens per second."""
    for step, groups in steps.items():
        tokens = sum(len(group.token_ids) for group in groups)
        cells = [
            f"{name} {machine.spread([s * 1e3 for s in times[name][step]], 1):>22} ms "
            f"{tokens / statistics.median(times[name][step]):6.0f} tokens/s"
            for name in weights
        ]
        print(f"{step:28}", " · ".join(cells))


def _tables(count: int, num_tokens: int) -> list[list[int]]:
    blocks = list(range(NUM_BLOCKS))
    random.Random(0).shuffle(blocks)
    each = -(-num_tokens // BLOCK_SIZE)
    return [blocks[each * i : each * (i + 1)] for i in range(count)]


def _group(num_tokens: int, start: int, blocks: list[int]) -> RowGroup:
    tokens = [1000 + i for i in range(num_tokens)]
    return RowGroup(
        token_ids=tokens,
        start_position=start,
        blocks=blocks,
        num_logits=1,
        is_prompt=num_tokens > 1,
    )


def _median_seconds(model: PagedModel, groups: list[RowGroup]) -> float:
    model.execute(groups)
    times = []
    for _ in range(STEPS_PER_ROUND):
        began = time.perf_counter()
        model.execute(groups)
        times.append(time.perf_counter() - began)
    return statistics.median(times)


if __name__ == "__main__":
    main()
