"""What the way from a worker's token to its reader adds to the first token of an answer.

A worker process without a model stamps each text when it makes it; the client, another process,
reads the same clock when the bytes come in. In between: the worker's queue and sender, the control
socket, the engine's client, session, pacer, outbox and WebSocket. The gateway has one core, the
worker (idle most of the time) and the client share the other. Answers of ``NUM_TOKENS`` tokens
overlap; their requests come at random moments.

    python -m loadtest.delivery.first_token [--requests 1200] [--per-second 20]
"""

from __future__ import annotations

import argparse
import asyncio
import os
import random
import time

import uvloop

from loadtest import machine
from loadtest.delivery.prompt_clients import Answer, leave_all, open_clients
from loadtest.delivery.target import STAMPS, Target
from loadtest.delivery.timer_error import TimerError, watched_timers

NUM_REQUESTS, PER_SECOND = 1200, 20.0
NUM_TOKENS = 16
NUM_CLIENTS = 16
WARM_UP = 20  # requests, not counted
LAST_ANSWERS_S = 10.0


async def measure(port: int, num_requests: int, per_s: float) -> tuple[list[Answer], TimerError]:
    """Requests in turn over the clients; returns when all are answered, or ``LAST_ANSWERS_S``
    after the last."""
    clients = await open_clients(port, NUM_CLIENTS, STAMPS)
    dice = random.Random(1)
    answers: list[Answer] = []
    async with watched_timers() as timer_error:
        next_at = time.monotonic()
        for number in range(WARM_UP + num_requests):
            next_at += dice.expovariate(per_s)
            await asyncio.sleep(max(0.0, next_at - time.monotonic()))
            answers.append(clients[number % NUM_CLIENTS].ask("x", NUM_TOKENS))
        await asyncio.wait([answer.over for answer in answers], timeout=LAST_ANSWERS_S)
    await leave_all(clients)
    return answers[WARM_UP:], timer_error


def added_ms(answer: Answer) -> float:
    """From the stamp on the first text to its arrival."""
    return 1e3 * answer.arrivals[0] - int(answer.first_text) / 1e6


def run(
    num_requests: int = NUM_REQUESTS, per_s: float = PER_SECOND, *, cores: tuple[int, int] = (0, 1)
) -> dict[str, float]:
    """Print the figures and return those of the RESULT line. ``cores``: gateway's, and client's
    and worker's."""
    gateway_core, client_core = cores
    os.sched_setaffinity(0, {client_core})
    with Target("stamps") as target:
        machine.pin([target.pid], gateway_core)
        machine.pin(machine.children(target.pid), client_core)
        with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
            answers, timer_error = runner.run(measure(target.port, num_requests, per_s))
    added = [added_ms(answer) for answer in answers if answer.arrivals]
    p50_ms, p95_ms, p99_ms = (machine.percentile(added, share) for share in (0.5, 0.95, 0.99))
    num_lost = sum(not answer.is_whole for answer in answers)
    print(f"cores                gateway {gateway_core}, worker and client {client_core}")
    print(f"requests             {len(answers)}, {per_s:g}/s, of which not answered {num_lost}")
    print(f"added, median        {p50_ms:.2f} ms")
    print(f"95 %, 99 %, largest  {p95_ms:.2f}, {p99_ms:.2f}, {max(added):.2f} ms")
    print(f"client's timer error  {timer_error}")
    return {
        "ttft_added_p50_ms": p50_ms,
        "ttft_added_p95_ms": p95_ms,
        "ttft_added_p99_ms": p99_ms,
        "ttft_requests": len(answers),
        "ttft_lost": num_lost,
        "ttft_timer_error_p99_ms": timer_error.p99_ms,
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--requests", type=int, default=NUM_REQUESTS)
    parser.add_argument("--per-second", type=float, default=PER_SECOND)
    parser.add_argument("--core", type=int, default=0, help="of the gateway")
    parser.add_argument("--client-core", type=int, default=1)
    asked = parser.parse_args()
    print(machine.describe())
    cores = (asked.core, asked.client_core)
    machine.print_result(**run(asked.requests, asked.per_second, cores=cores))


if __name__ == "__main__":
    main()
