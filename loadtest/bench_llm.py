"""Output tokens per second over HTTP SSE: clawstream, llama.cpp and transformers, one core each.

Prompts of 64 tokens, 128 tokens out, greedy, ``ignore_eos``; output tokens divided by wall time,
prefill included. Every server is wholly on core 0 (pinned), the generator on core 1; one server
runs at a time, and the sides alternate. Every prompt is different, so that no prefix cache helps,
and all sides get the same ones. ``clawstream`` is what a user gets without configuring anything;
``no guesses`` is the same without look-ahead, which repetitive answers make look good.
``transformers`` is its own server, which answers one request at a time; ``transformers cb`` the
same with its continuous batching (at 1 and 16 streams only: they take minutes). ``static batch``
is the best we could make of its ``generate``: one padded batch of all, there from the start, which
no server in the open gets.

    python -m loadtest.bench_llm [--concurrency 1 4 8 16 32] [--rounds 3] [--sides clawstream …]
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
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import NamedTuple

import aiohttp

from engine.llm.scheduling.plan import SchedulerConfig
from engine.models.store import ModelStore
from loadtest import machine
from loadtest.gateway_process import GatewayProcess
from loadtest.peers.gguf import smollm2_gguf

MODEL = "smollm2-135m"
PROMPT_WORDS = 64  # of one token each
OUTPUT_TOKENS = 128
FEWEST_REQUESTS = 2  # one after the other where there are fewer streams
WORDS = (
    "time", "year", "people", "way", "day", "man", "thing", "woman", "life", "child", "world",
    "school", "state", "family", "student", "group", "country", "problem", "hand", "part", "place",
    "case", "week", "company", "system", "program", "question", "work",
)  # fmt: skip
MOST_GUESSING = SchedulerConfig().speculative_max_batch  # streams; with more, nobody guesses
SIDES = (
    "clawstream",
    "no guesses",
    "llama.cpp",
    "transformers",
    "transformers cb",
    "static batch",
)
SLOW_SIDES, SLOW_STREAMS = ("transformers", "transformers cb"), (1, 16)


class Load(NamedTuple):
    """One measurement."""

    tokens_per_s: float
    first_token_s: float  # median


class Server(NamedTuple):
    url: str  # where its API begins
    description: str
    model: str = MODEL
    knows_ignore_eos: bool = True


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--concurrency", type=int, nargs="+", default=[1, 4, 8, 16, 32])
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--sides", nargs="+", choices=SIDES, default=list(SIDES))
    arguments = parser.parse_args()
    print(machine.describe())
    rates: dict[tuple[str, int], list[float]] = {}
    for number in range(1, arguments.rounds + 1):
        for side in arguments.sides:
            for streams, load in measure_side(side, arguments.concurrency, number):
                rates.setdefault((side, streams), []).append(load.tokens_per_s)
                print(
                    f"round {number} {side:<13} {streams:>3} streams {load.tokens_per_s:7.1f} tok/s"
                    f", first token {load.first_token_s * 1000:6.0f} ms",
                    flush=True,
                )
    report(rates, arguments.concurrency)


def measure_side(side: str, concurrency: list[int], number: int) -> Iterator[tuple[int, Load]]:
    """Load the side's server at each concurrency; llama.cpp's is started with as many slots."""
    if side == "no guesses":
        concurrency = [streams for streams in concurrency if streams <= MOST_GUESSING]
    if side in SLOW_SIDES:
        concurrency = [streams for streams in concurrency if streams in SLOW_STREAMS]
    parts = [[streams] for streams in concurrency] if side == "llama.cpp" else [concurrency]
    for part in parts:
        with serve(side, max(part)) as server:
            if number == 1:
                print(f"{side}: {server.description}")
            asyncio.run(run_load(server, 2, 8, "warm-up"))  # not counted
            for streams in part:
                seed = f"{number} {streams}"
                yield streams, asyncio.run(run_load(server, streams, OUTPUT_TOKENS, seed))


@contextmanager
def serve(side: str, slots: int) -> Iterator[Server]:
    """The side's server, born on core 0; who calls this is on core 1 while it serves."""
    folder = ModelStore().pull(MODEL).files["model"]
    with ExitStack() as stack:
        os.sched_setaffinity(0, {0})  # a new process inherits it
        if side == "llama.cpp":
            model = smollm2_gguf(Path(stack.enter_context(tempfile.TemporaryDirectory())))
            server = stack.enter_context(run_peer("llama_cpp", str(model), str(slots)))
        elif side == "static batch":
            server = stack.enter_context(run_peer("static_batches", folder))
        elif side == "transformers":
            server = stack.enter_context(run_peer("transformers_serve", folder))
        elif side == "transformers cb":
            options = ("--continuous-batching", "--dtype", "float32")
            server = stack.enter_context(run_peer("transformers_serve", folder, *options))
        else:
            guesses = "" if side == "clawstream" else "speculative_tokens = 0"
            config = f"[models.{MODEL}]\n[inference]\n{guesses}\n"
            gateway = stack.enter_context(GatewayProcess(config))
            server = Server(f"{gateway.http_url}/v1", guesses or "as configured by default")
        os.sched_setaffinity(0, {1})
        yield server


@contextmanager
def run_peer(name: str, *arguments: str) -> Iterator[Server]:
    """A module of ``loadtest.peers``: it prints its address and a description, and serves until
    its standard input ends."""
    with subprocess.Popen(
        [sys.executable, "-m", f"loadtest.peers.{name}", *arguments],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
    ) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        try:
            address = process.stdout.readline().strip()
            server = Server(f"{address}/v1", process.stdout.readline().strip())
            if name == "transformers_serve":
                model = process.stdout.readline().strip()
                server = server._replace(model=model, knows_ignore_eos=False)
            yield server
        finally:
            process.stdin.close()
            try:
                process.wait(timeout=60)
            except subprocess.TimeoutExpired:
                process.kill()


async def run_load(server: Server, streams: int, output_tokens: int, seed: str) -> Load:
    """``streams`` clients at once, each with one request, or with its share of the fewest."""
    dice = random.Random(seed)
    shares = [[prompt(dice) for _ in range(-(-FEWEST_REQUESTS // streams))] for _ in range(streams)]

    async def ask(prompts: list[str]) -> list[tuple[int, float]]:
        return [await complete(session, server, each, output_tokens) for each in prompts]

    # llama.cpp closes a connection that was announced to stay: everybody gets new ones.
    connector = aiohttp.TCPConnector(force_close=True, limit=0)
    timeout = aiohttp.ClientTimeout(total=900)
    async with aiohttp.ClientSession(connector=connector, timeout=timeout) as session:
        started = time.perf_counter()
        told = await asyncio.gather(*(ask(share) for share in shares))
        elapsed = time.perf_counter() - started
    answers = [answer for answers in told for answer in answers]
    tokens = sum(count for count, _ in answers)
    return Load(tokens / elapsed, statistics.median(first for _, first in answers))


def prompt(dice: random.Random) -> str:
    return " " + " ".join(dice.choices(WORDS, k=PROMPT_WORDS))


async def complete(
    session: aiohttp.ClientSession, server: Server, text: str, output_tokens: int
) -> tuple[int, float]:
    """Tokens of one streamed completion, and seconds until its first."""
    body = {
        "model": server.model,
        "prompt": text,
        "max_tokens": output_tokens,
        "temperature": 0,
        "stream": True,
        "stream_options": {"include_usage": True},
    }
    if server.knows_ignore_eos:  # transformers refuses what it does not know
        body |= {"ignore_eos": True, "cache_prompt": False}
    started = time.perf_counter()
    first_s, tokens = 0.0, 0
    async with session.post(f"{server.url}/completions", json=body) as response:
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
        raise RuntimeError(f"{server.url} answered {tokens} tokens instead of {output_tokens}")
    return tokens, first_s


def report(rates: dict[tuple[str, int], list[float]], concurrency: list[int]) -> None:
    sides = [side for side in SIDES if any(key[0] == side for key in rates)]
    print("\nstreams  " + "  ".join(f"{side:>24}" for side in sides) + "   tok/s, median (range)")
    for streams in concurrency:
        measured = (rates.get((side, streams)) for side in sides)
        cells = (machine.spread(found, 1) if found else "-" for found in measured)
        print(f"{streams:>7}  " + "  ".join(f"{cell:>24}" for cell in cells))
    figures: dict[str, float | int | str] = {}
    for peer in sides:
        if peer in ("clawstream", "no guesses"):
            continue
        for side, name in (("clawstream", "ratio"), ("no guesses", "plain_ratio")):
            for streams in concurrency:
                if (peer, streams) in rates and (side, streams) in rates:
                    ours = statistics.median(rates[side, streams])
                    theirs = statistics.median(rates[peer, streams])
                    figures[f"{_key(peer)}_{name}_{streams}"] = ours / theirs
    machine.print_result(**figures)


def _key(side: str) -> str:
    return side.replace(".", "").replace(" ", "_")


if __name__ == "__main__":
    main()
