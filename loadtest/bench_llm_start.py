"""From start to first token: load time, memory, and how long an idle engine takes to begin.

The model was imported before. The server, gateway and worker, is on core 0, the client on core 1;
requests go over HTTP with SSE, one at a time. Two kinds of prompt: 64 tokens that nobody asked
before, and a chat whose long system prompt is in the prefix cache and whose question is new.

    python -m loadtest.bench_llm_start [--requests 40] [--kv-cache-bytes 268435456]
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import random
import statistics
import time
from typing import Any, NamedTuple

import aiohttp

from engine.models.store import ModelStore
from loadtest import machine
from loadtest.gateway_process import GatewayProcess
from loadtest.local_engine import MODEL
from loadtest.prose import prose

PROMPT_TOKENS = 64
SYSTEM_WORDS = 200
QUESTION_WORDS = 30
WARM_UP = 3
WORDS = (1000, 40_000)  # token ids of ordinary words


class First(NamedTuple):
    """How an answer began."""

    after_ms: float
    prompt_tokens: int
    cached_tokens: int


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--requests", type=int, default=40)
    parser.add_argument("--kv-cache-bytes", type=int, default=256 << 20)
    arguments = parser.parse_args()
    os.sched_setaffinity(0, {0})  # the server inherits it
    print(machine.describe())
    ModelStore().pull(MODEL)
    config = f"[models.{MODEL}]\n[inference]\nkv_cache_bytes = {arguments.kv_cache_bytes}\n"
    began = time.perf_counter()
    with GatewayProcess(config) as gateway:
        load_s = time.perf_counter() - began
        os.sched_setaffinity(0, {1})
        (worker,) = gateway.worker_pids
        gateway_mb, worker_mb = machine.rss_megabytes(gateway.pid), machine.rss_megabytes(worker)
        print(
            f"ready after {load_s:.1f} s; gateway {gateway_mb:.0f} MB, worker {worker_mb:.0f} MB, "
            f"of which cache {arguments.kv_cache_bytes / 1e6:.0f} MB"
        )
        new = asyncio.run(measure(gateway.http_url, arguments.requests, "completions"))
        chat = asyncio.run(measure(gateway.http_url, arguments.requests, "chat/completions"))
    report("new prompt", new)
    report("chat", chat)
    machine.print_result(
        load_s=load_s,
        worker_mb=worker_mb,
        gateway_mb=gateway_mb,
        ttft_p50_ms=statistics.median(first.after_ms for first in new),
        ttft_p95_ms=machine.percentile([first.after_ms for first in new], 0.95),
        chat_ttft_p50_ms=statistics.median(first.after_ms for first in chat),
        chat_ttft_p95_ms=machine.percentile([first.after_ms for first in chat], 0.95),
    )


def report(name: str, firsts: list[First]) -> None:
    waits_ms = [first.after_ms for first in firsts]
    print(
        f"{name:<10} {firsts[-1].prompt_tokens} tokens, {firsts[-1].cached_tokens} of them cached: "
        f"first token after {statistics.median(waits_ms):.0f} ms, "
        f"p95 {machine.percentile(waits_ms, 0.95):.0f} ms, most {max(waits_ms):.0f} ms"
    )


async def measure(url: str, count: int, path: str) -> list[First]:
    """One answer after the other, all begun with different questions."""
    dice = random.Random(path)
    bodies: list[dict[str, Any]] = [
        {"prompt": [dice.randint(*WORDS) for _ in range(PROMPT_TOKENS)]}
        if path == "completions"
        else {
            "messages": [
                {"role": "system", "content": prose(0, SYSTEM_WORDS)},
                {"role": "user", "content": prose(number + 1, QUESTION_WORDS)},
            ]
        }
        for number in range(count + WARM_UP)
    ]
    async with aiohttp.ClientSession(timeout=aiohttp.ClientTimeout(total=60)) as session:
        firsts = [await first_token(session, f"{url}/v1/{path}", body) for body in bodies]
    return firsts[WARM_UP:]


async def first_token(session: aiohttp.ClientSession, url: str, prompt: dict[str, Any]) -> First:
    body = {
        **prompt,
        "model": MODEL,
        "max_tokens": 4,
        "temperature": 0,
        "ignore_eos": True,
        "stream": True,
        "stream_options": {"include_usage": True},
    }
    began = time.perf_counter()
    after_ms: float | None = None
    usage: dict[str, Any] = {}
    async with session.post(url, json=body) as response:
        response.raise_for_status()
        async for line in response.content:
            if not line.startswith(b"data: {"):
                continue
            if after_ms is None:
                after_ms = 1000 * (time.perf_counter() - began)
            usage = json.loads(line[6:])["usage"] or usage
    assert after_ms is not None
    cached = usage["prompt_tokens_details"]["cached_tokens"]
    return First(after_ms, usage["prompt_tokens"], cached)


if __name__ == "__main__":
    main()
