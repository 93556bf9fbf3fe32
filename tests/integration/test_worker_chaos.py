"""Workers killed, stopped and bloated under load, fifty times: nobody outside notices."""

from __future__ import annotations

import asyncio
import logging
import re
import signal
import time
from pathlib import Path

import aiohttp
import psutil
import pytest

from gateway.client import FrameStream, connect, frames_from_bytes
from loadtest.gateway_process import GatewayProcess
from tests.fakes.model_folder import add_version
from tests.fakes.pictures import encode, gradient

pytestmark = pytest.mark.slow

logger = logging.getLogger(__name__)

ROUNDS = 50
WORKERS = 2
STREAMS = 3
HEALED_S = 30.0
# A stopped worker is one that hangs; a bloated one is over its ceiling at once.
HARMS = (signal.SIGKILL, signal.SIGSTOP, signal.SIGUSR1)
CONFIG = """
[models.m]
path = "{folder}"
workers = {workers}
max_restarts = 1000
stall_floor_s = 0.5
stall_timeout_s = 5.0
max_worker_memory_mb = 120
trial_s = 0
"""


async def test_fifty_workers_killed_stopped_or_bloated_cost_no_receipt_and_leak_nothing(
    tmp_path: Path,
) -> None:
    folder = tmp_path / "versions"
    add_version(folder, 1, run_s=0.005, bloat_mb=150)
    all_healed_s: list[float] = []
    events: list[str] = []
    with GatewayProcess(CONFIG.format(folder=f"{folder}/", workers=WORKERS)) as gateway:
        process = psutil.Process(gateway.pid)
        descriptors = process.num_fds()
        async with asyncio.TaskGroup() as tasks:
            stop = asyncio.Event()
            streaming = [
                tasks.create_task(stream(gateway.url, stop, events)) for _ in range(STREAMS)
            ]
            await asyncio.sleep(2.0)
            memory_mb = process.memory_info().rss / 1e6
            for number in range(ROUNDS):
                healed_s = await harm(gateway, HARMS[number % len(HARMS)], number)
                all_healed_s.append(healed_s)
            stop.set()
        for each in streaming:
            statistics = each.result().statistics
            assert statistics.receipts_add_up, statistics
            assert statistics.results > 100
        assert "disconnected" not in events
        assert len(gateway.worker_pids) == WORKERS
        assert process.num_fds() <= descriptors + 2
        assert process.memory_info().rss / 1e6 - memory_mb < 20.0
        assert gateway.stop() == 0
    logger.info("healed after %s s", sorted(round(each, 2) for each in all_healed_s))


async def stream(url: str, stop: asyncio.Event, events: list[str]) -> FrameStream:
    pictures = [encode(gradient(64, 48))]
    async with connect(
        url, reconnect=False, on_event=lambda event: events.append(event.name)
    ) as client:
        source = frames_from_bytes(pictures, fps=30.0, loop=True)
        frames = client.stream_frames(source, model="m", deadline_ms=1000.0)
        async for _ in frames:
            if stop.is_set():
                source.stop()  # the stream ends by itself: every receipt is awaited
        return frames


async def harm(gateway: GatewayProcess, how: signal.Signals, number: int) -> float:
    """Seconds until the harmed worker is gone and as many as before serve."""
    victim = gateway.worker_pids[number % WORKERS]
    began = time.monotonic()
    psutil.Process(victim).send_signal(how)
    async with asyncio.timeout(HEALED_S):
        while victim in gateway.worker_pids or await workers_alive(gateway) != WORKERS:  # noqa: ASYNC110 - another process's state
            await asyncio.sleep(0.1)
    return time.monotonic() - began


async def workers_alive(gateway: GatewayProcess) -> int:
    """Workers that serve; -1 while one too many runs."""
    if len(gateway.worker_pids) != WORKERS:
        return -1
    async with aiohttp.ClientSession() as client, client.get(gateway.http_url + "/metrics") as page:
        (line,) = re.findall(r"^clawstream_workers_alive\{.*\} (.*)$", await page.text(), re.M)
    return int(float(line))
