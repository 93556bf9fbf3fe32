"""Answers whose connections break in the middle, again and again: is every one of them whole?

A gateway, several clients and a proxy for each, in one process. While an answer is read, its
connection is broken at random moments: by a reset, by a half-close in either direction, or by a
network that swallows everything until the client gives up. What is read is compared with what the
engine says to everybody, event by event.

    python -m loadtest.delivery.resume [--drops 200] [--clients 8] [--seed 1]
"""

from __future__ import annotations

import argparse
import asyncio
import random
import time
from collections import Counter
from contextlib import suppress
from dataclasses import dataclass, field

from gateway.app import Gateway
from gateway.client import Client, Event, LinkSettings, LostError, connect
from gateway.config import parse_config
from loadtest import machine
from tests.fakes.chaos_proxy import ChaosProxy, Toxics
from tests.fakes.text_engine import TextEngine

NUM_DROPS, NUM_CLIENTS = 200, 8
WORDS = tuple(f" word{number}" for number in range(80))
GAP_S = 0.02
# A dead network is found out soon, so that many can be tried.
SETTINGS = LinkSettings(open_timeout_s=1.0, ping_interval_s=0.2, pong_timeout_s=1.0)
DROPS_PER_ANSWER = 3
KINDS = ("reset", "reset", "half close", "half close to the gateway", "black hole")
ANSWER_TIMEOUT_S = 60.0


@dataclass(slots=True)
class ResumeReport:
    """What became of the answers. ``wrong`` counts those with a hole, a repeat or another text."""

    drops: Counter[str] = field(default_factory=Counter)
    whole: int = 0
    not_recovered: int = 0
    wrong: int = 0
    outages_s: list[float] = field(default_factory=list)

    @property
    def num_drops(self) -> int:
        return self.drops.total()


class _Reader:
    """One client behind a proxy of its own, which reads answers until enough drops are made."""

    def __init__(
        self, gateway: Gateway, report: ResumeReport, *, num_drops: int, seed: int
    ) -> None:
        self._gateway = gateway
        self._report = report
        self._num_drops = num_drops
        self._random = random.Random(seed)
        self._lost_at: float | None = None

    async def run(self) -> None:
        async with ChaosProxy(self._gateway.port) as proxy:
            url = f"http://127.0.0.1:{proxy.port}"
            async with connect(url, settings=SETTINGS, on_event=self._on_event) as client:
                while self._num_drops > 0:
                    async with asyncio.timeout(ANSWER_TIMEOUT_S):
                        await self._read(client, proxy)

    async def _read(self, client: Client, proxy: ChaosProxy) -> None:
        """One answer, with its drops."""
        drops_at = set(self._random.sample(range(1, len(WORDS) - 1), DROPS_PER_ANSWER))
        texts: list[str] = []
        seqs: list[int] = []
        dropping: asyncio.Task[None] | None = None
        try:
            async for event in client.stream_chat("fake", prompt="x"):
                texts.append(event.text)
                seqs.append(event.seq)
                is_free = client.is_connected and (dropping is None or dropping.done())
                if event.seq in drops_at and is_free and self._num_drops > 0:
                    self._num_drops -= 1
                    dropping = asyncio.create_task(self._drop(client, proxy), name="drop")
        except LostError:
            self._report.not_recovered += 1
            is_right = "".join(WORDS).startswith("".join(texts))
        else:
            is_right = tuple(texts) == (*WORDS, "")
            self._report.whole += is_right
        if dropping is not None:
            await dropping
        if not is_right or seqs != list(range(len(seqs))):
            self._report.wrong += 1

    async def _drop(self, client: Client, proxy: ChaosProxy) -> None:
        kind = self._random.choice(KINDS)
        self._report.drops[kind] += 1
        match kind:
            case "reset":
                proxy.reset_all()
            case "half close" | "half close to the gateway":
                with suppress(OSError):  # a socket that has just gone by itself
                    proxy.half_close_all(towards_client=kind == "half close")
            case _:
                proxy.up = proxy.down = Toxics(is_black_hole=True)
                while client.is_connected:  # noqa: ASYNC110 - what is swallowed never comes again
                    await asyncio.sleep(0.01)
                proxy.up = proxy.down = Toxics()

    def _on_event(self, event: Event) -> None:
        now = time.monotonic()
        if event.name == "disconnected":
            self._lost_at = now
        elif event.name == "reconnected" and self._lost_at is not None:
            self._report.outages_s.append(now - self._lost_at)


async def measure(
    *, num_drops: int = NUM_DROPS, num_clients: int = NUM_CLIENTS, seed: int = 1
) -> ResumeReport:
    """Make that many drops, spread over the clients.

    Raises:
        TimeoutError: an answer neither ended nor failed.
    """
    report = ResumeReport()
    config = parse_config({"server": {"port": 0, "shutdown_budget_s": 2.0}})
    gateway = Gateway(config, TextEngine(words=WORDS, gap_s=GAP_S))
    await gateway.start()
    try:
        async with asyncio.TaskGroup() as readers:
            for number in range(num_clients):
                share = num_drops * (number + 1) // num_clients - num_drops * number // num_clients
                reader = _Reader(gateway, report, num_drops=share, seed=seed * 1000 + number)
                readers.create_task(reader.run(), name=f"reader {number}")
        gateway.sessions.check_integrity()
    finally:
        await gateway.aclose()
    return report


def run(
    num_drops: int = NUM_DROPS, num_clients: int = NUM_CLIENTS, seed: int = 1
) -> dict[str, float]:
    """Print what became of the answers; the figures of the RESULT line."""
    report = asyncio.run(measure(num_drops=num_drops, num_clients=num_clients, seed=seed))
    outages_s = sorted(report.outages_s)
    for kind, count in sorted(report.drops.items()):
        print(f"{count:5d} {kind}")
    print(
        f"answers: {report.whole} whole, {report.not_recovered} not recovered, {report.wrong} wrong"
    )
    return {
        "resume_drops": report.num_drops,
        "resume_whole": report.whole,
        "resume_not_recovered": report.not_recovered,
        "resume_wrong": report.wrong,
        "resume_outage_p50_s": outages_s[len(outages_s) // 2],
        "resume_outage_max_s": outages_s[-1],
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--drops", type=int, default=NUM_DROPS)
    parser.add_argument("--clients", type=int, default=NUM_CLIENTS)
    parser.add_argument("--seed", type=int, default=1)
    asked = parser.parse_args()
    machine.print_result(**run(asked.drops, asked.clients, asked.seed))


if __name__ == "__main__":
    main()
