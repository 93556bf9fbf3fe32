"""Requests per second on a device that really sleeps: ours through real workers, peers over HTTP.

Every client waits for its answer before it asks again. Ours runs wholly on core 0, generator
included; a peer has core 0 for itself and its generator is on core 1.
"""

from __future__ import annotations

import asyncio
import os
import signal
import socket
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from engine.api import Model, load_model
from engine.manifest import Manifest
from loadtest.gateway_process import free_port
from loadtest.peers.environment import python_of

SERVERS = Path(__file__).resolve().parents[1] / "peers"
START_S = 60.0
STOP_S = 10.0
WARM_UP_S = 1.0


@dataclass(frozen=True, slots=True, kw_only=True)
class SleepCost:
    """Milliseconds of a batch: ``fixed_ms + per_item_ms * size``."""

    fixed_ms: float
    per_item_ms: float


def ours_per_s(cost: SleepCost, clients: int, seconds: float, ceiling: int = 64) -> float:
    """The engine with one worker and its defaults; ``ceiling`` is ``max_batch_size``."""
    manifest = Manifest(
        name="sleeper",
        pipeline="loadtest.batching.sleeper:build",
        options={"fixed_ms": cost.fixed_ms, "per_item_ms": cost.per_item_ms},
    )
    with pinned(core=0):  # threads and workers inherit it
        model = load_model(manifest, max_batch_size=ceiling, batch_timeout_millis=5.0)
        with model:
            return asyncio.run(closed_loop(lambda: ModelClient(model), clients, seconds))


def peer_per_s(
    peer: str, size: int, cost: SleepCost, clients: int, seconds: float, environments: Path
) -> float:
    """A peer that is told the batch size."""
    port = free_port()
    arguments = [str(size), str(cost.fixed_ms), str(cost.per_item_ms)]
    command = [str(python_of(peer, environments)), str(SERVERS / f"{peer}_server.py")]
    environment = dict(os.environ)
    if peer == "mosec":
        command += ["--port", str(port), "--address", "127.0.0.1"]
        environment["SLEEPER"] = " ".join(arguments)
    else:
        command += [str(port), *arguments]
    path = {"litserve": "/predict", "mosec": "/inference"}[peer]
    with pinned(core=0), running(command, environment, port), pinned(core=1):
        return asyncio.run(closed_loop(lambda: HttpClient(port, path), clients, seconds))


class Client(Protocol):
    """One caller."""

    async def ask(self) -> None:
        """Ask once and wait for the answer."""

    def close(self) -> None: ...


class ModelClient:
    """Calls a loaded model."""

    def __init__(self, model: Model) -> None:
        self._model = model

    async def ask(self) -> None:
        await self._model.async_run(b"1")

    def close(self) -> None:
        """The model is everybody's."""


class HttpClient:
    """One kept-alive connection, as little work as possible: the generator must not be the
    bottleneck."""

    def __init__(self, port: int, path: str) -> None:
        self._port = port
        body = b'{"input": 1}'
        head = (
            f"POST {path} HTTP/1.1\r\nHost: 127.0.0.1:{port}\r\nContent-Type: application/json"
            f"\r\nContent-Length: {len(body)}\r\n\r\n"
        )
        self._request = head.encode() + body
        self._writer: asyncio.StreamWriter | None = None

    async def ask(self) -> None:
        if self._writer is None:
            self._reader, self._writer = await asyncio.open_connection("127.0.0.1", self._port)
        self._writer.write(self._request)
        head = (await self._reader.readuntil(b"\r\n\r\n")).lower()
        if not head.startswith(b"http/1.1 200"):
            raise RuntimeError(f"the peer answered {head!r}")
        length = head.split(b"content-length:", 1)[1].split(b"\r\n", 1)[0]
        await self._reader.readexactly(int(length))

    def close(self) -> None:
        if self._writer is not None:
            self._writer.close()


async def closed_loop(make: Callable[[], Client], clients: int, seconds: float) -> float:
    """Answers per second, after a warm-up."""
    loop = asyncio.get_running_loop()
    begin = loop.time() + WARM_UP_S
    end = begin + seconds
    answers = 0

    async def ask_on() -> None:
        nonlocal answers
        client = make()
        while loop.time() < end:
            await client.ask()
            answers += begin <= loop.time() < end
        client.close()

    async with asyncio.timeout(WARM_UP_S + seconds + STOP_S), asyncio.TaskGroup() as tasks:
        for number in range(clients):
            tasks.create_task(ask_on(), name=f"client {number}")
    return answers / seconds


@contextmanager
def pinned(core: int) -> Iterator[None]:
    """This thread, and whatever it starts, on one core."""
    before = os.sched_getaffinity(0)
    os.sched_setaffinity(0, {core})
    try:
        yield
    finally:
        os.sched_setaffinity(0, before)


@contextmanager
def running(command: list[str], environment: dict[str, str], port: int) -> Iterator[None]:
    """A server process and its children; listening on entry, gone on exit."""
    with tempfile.TemporaryFile() as log:
        process = subprocess.Popen(
            command, env=environment, stdout=log, stderr=log, start_new_session=True
        )
        try:
            if not wait_listening(port, process):
                log.seek(0)
                raise RuntimeError(f"{command[1]} did not start:\n{log.read().decode()[-2000:]}")
            yield
        finally:
            stop_group(process)


def wait_listening(port: int, process: subprocess.Popen[bytes]) -> bool:
    give_up = time.monotonic() + START_S
    while time.monotonic() < give_up and process.poll() is None:
        with socket.socket() as probe:
            if probe.connect_ex(("127.0.0.1", port)) == 0:
                time.sleep(1.0)  # its worker may still be starting
                return True
        time.sleep(0.1)
    return False


def stop_group(process: subprocess.Popen[bytes]) -> None:
    """SIGTERM, then SIGKILL, to the process and its children (a session of their own)."""
    for number in (signal.SIGTERM, signal.SIGKILL):
        try:
            os.killpg(process.pid, number)
            process.wait(STOP_S)
        except (ProcessLookupError, subprocess.TimeoutExpired):
            continue
