"""Output tokens per second over HTTP SSE: clawstream, llama.cpp and transformers, one core each.

Prompts of 64 tokens, 128 tokens out, ``ignore_eos``; output tokens divided by wall time, prefill
included. Every server is wholly on core 0 (pinned), the generator on core 1; one server runs at a
time, and the sides alternate. Every prompt is different, so that no prefix cache helps.

    python -m loadtest.bench_llm [--concurrency 1 4 8 16 32] [--rounds 3]
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import random
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

import aiohttp

from engine.models.store import ModelStore
from loadtest import machine
from loadtest.gateway_process import GatewayProcess
from loadtest.peers.gguf import smollm2_gguf

MODEL = "smollm2-135m"
PROMPT_WORDS = 64  # of one token each
OUTPUT_TOKENS = 128
WORDS = [
    "time",
    "year",
    "people",
    "way",
    "day",
    "man",
    "thing",
    "woman",
    "life",
    "child",
    "world",
    "school",
    "state",
    "family",
    "student",
    "group",
    "country",
    "problem",
    "hand",
    "part",
    "place",
    "case",
    "week",
    "company",
    "system",
    "program",
    "question",
    "work",
]
SIDES = ("clawstream", "llama.cpp", "transformers")


class Load(NamedTuple):
    """One measurement."""

    tokens_per_s: float
    first_token_s: float  # median


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--concurrency", type=int, nargs="+", default=[1, 4, 8, 16, 32])
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--sides", nargs="+", choices=SIDES, default=list(SIDES))
    arguments = parser.parse_args()
    os.sched_setaffinity(0, {1})
    print(machine.describe())
    rates: dict[tuple[str, int], list[float]] = {}
    for number in range(1, arguments.rounds + 1):
        for side in arguments.sides:
            for streams, load in measure_side(side, arguments.concurrency):
                rates.setdefault((side, streams), []).append(load.tokens_per_s)
                print(
                    f"round {number} {side:<13} {streams:>3} streams {load.tokens_per_s:7.1f} tok/s"
                    f", first token {load.first_token_s * 1000:6.0f} ms",
                    flush=True,
                )
    report(rates, arguments.concurrency)


def measure_side(side: str, concurrency: list[int]) -> Iterator[tuple[int, Load]]:
    """Start the side's server and load it at each concurrency."""
    for streams in concurrency:
        with serve(side, streams) as url:
            asyncio.run(run_load(url, min(streams, 2), 8))  # not counted
            yield streams, asyncio.run(run_load(url, streams, OUTPUT_TOKENS))


@contextmanager
def serve(side: str, streams: int) -> Iterator[str]:
    """The side's server on core 0; yields where its API begins."""
    folder = ModelStore().pull(MODEL).files["model"]
    if side == "clawstream":
        config = f"[models.{MODEL}]\n[inference]\nthreads = 1\n"
        with GatewayProcess(config) as gateway:
            machine.pin([gateway.pid, *gateway.worker_pids], core=0)
            yield f"{gateway.http_url}/v1"
        return
    if side == "llama.cpp":
        with tempfile.TemporaryDirectory() as work:
            model = smollm2_gguf(Path(work))
        command = ["loadtest.peers.llama_cpp", str(model), str(streams)]
    else:
        command = ["loadtest.peers.transformers_server", folder]
    with subprocess.Popen(
        ["taskset", "-c", "0", sys.executable, "-m", *command],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
    ) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        try:
            yield process.stdout.readline().strip() + "/v1"
        finally:
            process.stdin.close()
            process.wait(timeout=60)


async def run_load(url: str, streams: int, output_tokens: int) -> Load:
    """``streams`` requests at once, twice as many requests in all when there are few."""
    timeout = aiohttp.ClientTimeout(total=600)
    generator = random.Random(streams)
    async with aiohttp.ClientSession(timeout=timeout) as session:
        started = time.perf_counter()
        answers = await asyncio.gather(
            *(complete(session, url, prompt(generator), output_tokens) for _ in range(streams))
        )
        elapsed = time.perf_counter() - started
    tokens = sum(count for count, _ in answers)
    return Load(tokens / elapsed, statistics.median(first for _, first in answers))


def prompt(generator: random.Random) -> str:
    return " " + " ".join(generator.choices(WORDS, k=PROMPT_WORDS))


async def complete(
    session: aiohttp.ClientSession, url: str, text: str, output_tokens: int
) -> tuple[int, float]:
    """Tokens of one streamed completion, and seconds until its first."""
    body = {
        "model": MODEL,
        "prompt": text,
        "max_tokens": output_tokens,
        "temperature": 0,
        "ignore_eos": True,
        "cache_prompt": False,
        "stream": True,
        "stream_options": {"include_usage": True},
    }
    started = time.perf_counter()
    first_s, tokens = 0.0, 0
    async with session.post(f"{url}/completions", json=body) as response:
        response.raise_for_status()
        async for line in response.content:
            if not line.startswith(b"data: ") or line.startswith(b"data: [DONE]"):
                continue
            chunk = json.loads(line[6:])
            if chunk.get("choices") and first_s == 0.0:
                first_s = time.perf_counter() - started
            if chunk.get("usage"):
                tokens = chunk["usage"]["completion_tokens"]
    if tokens != output_tokens:
        raise RuntimeError(f"{url} answered {tokens} tokens instead of {output_tokens}")
    return tokens, first_s


def report(rates: dict[tuple[str, int], list[float]], concurrency: list[int]) -> None:
    sides = [side for side in SIDES if any(key[0] == side for key in rates)]
    print("\nstreams  " + "  ".join(f"{side:>24}" for side in sides) + "   tok/s, median (range)")
    for streams in concurrency:
        cells = (machine.spread(rates[side, streams], 1) for side in sides)
        print(f"{streams:>7}  " + "  ".join(f"{cell:>24}" for cell in cells))
    figures: dict[str, float | int | str] = {}
    for peer, key in (("llama.cpp", "llamacpp"), ("transformers", "transformers")):
        for streams in concurrency:
            if (peer, streams) in rates and ("clawstream", streams) in rates:
                ours = statistics.median(rates["clawstream", streams])
                theirs = statistics.median(rates[peer, streams])
                figures[f"{key}_ratio_{streams}"] = ours / theirs
    machine.print_result(**figures)


if __name__ == "__main__":
    main()
