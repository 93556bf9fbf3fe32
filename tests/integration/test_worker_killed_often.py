"""Twenty workers killed under load, one after another, on the real model."""

from __future__ import annotations

import asyncio
import logging
import signal
from pathlib import Path

import psutil
import pytest

from engine.models.store import ModelStore
from gateway.client import connect, frames_from_bytes
from loadtest.gateway_process import GatewayProcess
from loadtest.pictures import encoded_frames

pytestmark = pytest.mark.slow

logger = logging.getLogger(__name__)

KILLS = 20
RESUME_S = 5.0
CONFIG = """
[models.centerface]
workers = 1
max_restarts = 100
"""


async def test_answers_resume_and_receipts_add_up_after_each_of_twenty_kills() -> None:
    store = ModelStore()
    store.pull("centerface")
    pictures = encoded_frames(store.pull_clip("face"), width=320, height=256, count=16)
    resumed_s: list[float] = []
    with GatewayProcess(CONFIG) as gateway:
        descriptors = open_descriptors(gateway.pid)
        events: list[str] = []
        async with connect(
            gateway.url, reconnect=False, on_event=lambda event: events.append(event.name)
        ) as client:
            source = frames_from_bytes(pictures, fps=20.0, loop=True)
            stream = client.stream_frames(source, model="centerface", deadline_ms=1000.0)
            results = aiter(stream)
            for _ in range(KILLS):
                await take(results, 10)
                (worker,) = gateway.worker_pids
                psutil.Process(worker).send_signal(signal.SIGKILL)
                resumed_s.append(await time_until_new_worker_answers(results, gateway, worker))
            source.stop()
            async for _ in results:
                pass
        assert stream.statistics.receipts_add_up
        assert "disconnected" not in events
        assert len(gateway.worker_pids) == 1
        assert open_descriptors(gateway.pid) <= descriptors + 2
        workers = [psutil.Process(pid) for pid in gateway.worker_pids]
        assert gateway.stop() == 0
        assert psutil.wait_procs(workers, timeout=2)[1] == []
    logger.info("answers resumed after %s s", sorted(round(s, 2) for s in resumed_s))
    logger.info("receipts: %s", stream.statistics)
    assert max(resumed_s) < RESUME_S


async def take(results: object, count: int) -> None:
    for _ in range(count):
        await anext(results)  # type: ignore[call-overload]


async def time_until_new_worker_answers(
    results: object, gateway: GatewayProcess, old: int
) -> float:
    """Seconds from the kill to the first result once another worker runs."""
    loop = asyncio.get_running_loop()
    killed_at = loop.time()
    async with asyncio.timeout(30):
        while True:
            await take(results, 1)
            if [pid for pid in gateway.worker_pids if pid != old]:
                return loop.time() - killed_at


def open_descriptors(pid: int) -> int:
    return len(list(Path(f"/proc/{pid}/fd").iterdir()))
