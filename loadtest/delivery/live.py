"""The real model on real sockets: how evenly its answers are read, and what a burst of them loses.

The gateway and its engine's worker as a user starts them, with ``min_rate``, and the clients in
this process. N is how many answers run at once when more are asked for. Then 0.8 N readers, each
with one answer after the other; their gaps are from the moments when bytes came in. At last, while
these go on, more requests come, at three times the rate at which the readers made them. The worker
has a core, the gateway and the clients share the other.

gap std    of the gaps less the announced pace, ms: median answer; RESULT has the worst run's
within 15  share of the gaps within 15 % of the announced pace; the worst run's
raw        std of the gaps themselves, median answer, and their 5, 50, 95 and 99 % quantiles, ms
engine     the same of the gaps between tokens as they came from the engine, all answers together,
           from the buckets of the gateway's metrics; held: mean time between there and the writer
late       tokens of 1,000 that came from the engine after they were due

    python -m loadtest.delivery.live [--seconds 40] [--runs 3] [--core 0 --client-core 1]
"""

from __future__ import annotations

import argparse
import asyncio
import os
import random
import statistics
import time
from collections.abc import Coroutine
from typing import Any, TypeVar

import uvloop

from engine.models.store import ModelStore
from gateway.commands.scrape import Change, Scrape, scrape
from loadtest import machine
from loadtest.delivery.live_figures import HEADER, Burst, Run, burst_of, run_of
from loadtest.delivery.prompt_clients import Answer, PromptClient, leave_all, open_clients
from loadtest.delivery.timer_error import watched_timers
from loadtest.gateway_process import GatewayProcess
from loadtest.local_engine import MODEL
from loadtest.prose import prose

T = TypeVar("T")

MIN_RATE = 20.0
CONFIG = f"""
[models.{MODEL}]
[inference]
weights = "int8"
threads = 1
min_rate = {MIN_RATE}
"""
LOAD_SHARE = 0.8
PROMPT_WORDS = 40
ANSWER_TOKENS = (150, 300)
START_GAP_S = 0.25  # between the first prompts of two readers
MANY = 40  # readers who ask when N is looked for: more than a batch can have
SETTLE_S, LOOK_S, LOOK_EVERY_S = 8.0, 8.0, 0.25
SECONDS, RUNS = 40.0, 3
BURST_RATIO, BURST_S, BURST_SETTLE_S = 3.0, 5.0, 5.0
LAST_ANSWERS_S = 90.0


class Reader:
    """One connection on which one answer follows the other."""

    def __init__(self, client: PromptClient, number: int, seed: int) -> None:
        self.answers: list[Answer] = []
        self.client = client
        self._number = number
        self._dice = random.Random(1000 * seed + number)

    async def read_until(self, end_at: float) -> None:
        """Returns at ``end_at`` at the latest, perhaps in the middle of an answer."""
        await asyncio.sleep(self._number * START_GAP_S)
        while (left_s := end_at - time.monotonic()) > 0.0 and not self.client.is_lost:
            self.answers.append(ask(self.client, self._dice))
            await asyncio.wait([self.answers[-1].over], timeout=left_s)


def ask(client: PromptClient, dice: random.Random) -> Answer:
    """A prompt that nobody had before."""
    return client.ask(prose(dice.getrandbits(40), PROMPT_WORDS), dice.randint(*ANSWER_TOKENS))


async def open_readers(port: int, count: int, seed: int) -> list[Reader]:
    clients = await open_clients(port, count, MODEL)
    return [Reader(client, number, seed) for number, client in enumerate(clients)]


async def find_admitted(port: int) -> int:
    """How many answers run at once while many are asked for."""
    readers = await open_readers(port, MANY, seed=0)
    end_at = time.monotonic() + SETTLE_S + LOOK_S
    running = []
    async with asyncio.TaskGroup() as tasks:
        for reader in readers:
            tasks.create_task(reader.read_until(end_at), name="reader")
        await asyncio.sleep(SETTLE_S)
        while time.monotonic() < end_at:
            running.append((await look(port)).value("clawstream_llm_running"))
            await asyncio.sleep(LOOK_EVERY_S)
    await leave_all([reader.client for reader in readers])
    print(f"answers that run at once when {MANY} are asked for: {machine.spread(running, 0)}")
    return round(statistics.median(running))


async def read_steadily(port: int, num_readers: int, seconds: float, seed: int) -> Run:
    """What so many readers are told within ``seconds``."""
    readers = await open_readers(port, num_readers, seed)
    before = await look(port)
    end_at = time.monotonic() + seconds
    async with watched_timers() as timer_error, asyncio.TaskGroup() as tasks:
        for reader in readers:
            tasks.create_task(reader.read_until(end_at), name="reader")
    change = Change(before=before, after=await look(port))
    check_whole(readers)
    await leave_all([reader.client for reader in readers])
    answers = [answer for reader in readers for answer in reader.answers]
    return run_of(answers, change, timer_error, num_readers * seconds)


async def look(port: int) -> Scrape:
    return await asyncio.to_thread(scrape, f"http://127.0.0.1:{port}", None)


def check_whole(readers: list[Reader]) -> None:
    """A figure of answers with holes would be worth nothing."""
    for reader in readers:
        ended = [answer for answer in reader.answers if answer.over.done()]
        if reader.client.has_hole or not all(answer.is_whole for answer in ended):
            raise RuntimeError(f"not whole: {[answer.refusal or 'lost' for answer in ended]}")


async def burst(port: int, num_readers: int, per_s: float) -> Burst:
    """``BURST_S`` of requests at ``per_s`` beside the readers; waits for every answer."""
    readers = await open_readers(port, num_readers, seed=99)
    extra = await open_clients(port, round(per_s * BURST_S), MODEL)
    dice = random.Random(5)
    asked: list[Answer] = []
    begins_at = time.monotonic() + BURST_SETTLE_S
    async with asyncio.TaskGroup() as tasks:
        for reader in readers:
            tasks.create_task(reader.read_until(begins_at + BURST_S), name="reader")
        for number, client in enumerate(extra):
            await asyncio.sleep(max(0.0, begins_at + number / per_s - time.monotonic()))
            asked.append(ask(client, dice))
    steady = [answer for reader in readers for answer in reader.answers]
    every = steady + asked
    await asyncio.wait([answer.over for answer in every], timeout=LAST_ANSWERS_S)
    clients = [*(reader.client for reader in readers), *extra]
    has_hole = any(client.has_hole for client in clients)
    in_flight = (await look(port)).value("clawstream_prompts_in_flight")
    await leave_all(clients)
    return burst_of(steady, asked, per_s=per_s, has_hole=has_hole, num_in_flight=round(in_flight))


def run(
    seconds: float = SECONDS, runs: int = RUNS, *, cores: tuple[int, int] = (0, 1)
) -> dict[str, float]:
    """Print the figures and return those of the RESULT line. ``cores``: worker's, and gateway's
    and clients'."""
    worker_core, client_core = cores
    ModelStore().pull(MODEL)
    os.sched_setaffinity(0, {worker_core})  # the worker inherits it, and warms up there
    with GatewayProcess(CONFIG) as gateway:
        os.sched_setaffinity(0, {client_core})
        machine.pin([gateway.pid], client_core)
        print(f"cores: worker {worker_core}, gateway and clients {client_core}")
        admitted = on_uvloop(find_admitted(gateway.port))
        num_readers = max(1, int(LOAD_SHARE * admitted))
        print(f"N {admitted}, readers {num_readers}\n{HEADER}", flush=True)
        measured = []
        for number in range(runs):
            work = read_steadily(gateway.port, num_readers, seconds, seed=number + 1)
            measured.append(on_uvloop(work))
            print(measured[-1].row(), flush=True)
        mean_tokens = statistics.fmean(ANSWER_TOKENS)
        per_s = num_readers * statistics.fmean(each.rate_hz for each in measured) / mean_tokens
        outcome = on_uvloop(burst(gateway.port, num_readers, BURST_RATIO * per_s))
    print(outcome)
    return {
        "live_admitted": admitted,
        "live_streams": num_readers,
        "live_gap_std_ms": max(each.gap_std for each in measured),
        "live_within_15": min(each.within for each in measured),
        "live_engine_gap_std_ms": min(each.engine.std for each in measured),
        "live_held_ms": max(each.held for each in measured),
        "live_tokens_per_s": min(each.rate_hz for each in measured),
        "live_timer_error_p99_ms": max(each.timer_error.p99_ms for each in measured),
        "burst_sent": outcome.num_sent,
        "burst_refused": outcome.num_refused,
        "burst_lost": outcome.num_lost,
    }


def on_uvloop(work: Coroutine[Any, Any, T]) -> T:
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        return runner.run(work)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--seconds", type=float, default=SECONDS, help="of a run")
    parser.add_argument("--runs", type=int, default=RUNS)
    parser.add_argument("--core", type=int, default=0, help="of the worker")
    parser.add_argument("--client-core", type=int, default=1, help="of gateway and clients")
    asked = parser.parse_args()
    print(machine.describe())
    cores = (asked.core, asked.client_core)
    machine.print_result(**run(asked.seconds, asked.runs, cores=cores))


if __name__ == "__main__":
    main()
