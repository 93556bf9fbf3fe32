"""A real worker pool for tests, with recorded events, and proof that it leaves nothing behind."""

from __future__ import annotations

import asyncio
import json
import os
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from typing import Any

import psutil

from engine.batching.executor import Work
from engine.config import ModelConfig
from engine.manifest import Manifest
from engine.types import Failed, Result
from engine.workers.pool import WorkerPool

WAIT_S = 20.0


class RecordingEvents:
    """Implements ``ExecutorEvents``; ``wait`` sleeps until a condition on the record holds."""

    def __init__(self) -> None:
        self.answers: dict[int, Result | Failed] = {}
        self.lost: list[tuple[tuple[int, ...], str]] = []
        self.batches: list[tuple[int, float]] = []
        self.unavailable: list[str] = []
        self.retry_at: float | None = None
        self.num_rooms = 0
        self._changed = asyncio.Event()

    def on_room(self) -> None:
        self.num_rooms += 1
        self._changed.set()

    def on_done(self, key: int, outcome: Result | Failed) -> None:
        assert key not in self.answers, f"{key} was answered twice"
        self.answers[key] = outcome
        self._changed.set()

    def on_lost(self, keys: Sequence[int], reason: str) -> None:
        self.lost.append((tuple(keys), reason))
        self._changed.set()

    def on_batch(self, size: int, run_s: float) -> None:
        self.batches.append((size, run_s))

    def on_unavailable(self, reason: str, retry_at: float | None) -> None:
        self.unavailable.append(reason)
        self.retry_at = retry_at
        self._changed.set()

    async def wait(self, condition: Callable[[], bool], wait_s: float = WAIT_S) -> None:
        async with asyncio.timeout(wait_s):
            while not condition():
                self._changed.clear()
                await self._changed.wait()

    async def answer(self, key: int) -> Result | Failed:
        await self.wait(lambda: key in self.answers)
        return self.answers[key]

    async def data(self, key: int) -> dict[str, Any]:
        answer = await self.answer(key)
        assert isinstance(answer, Result), answer
        decoded: dict[str, Any] = json.loads(answer.data)
        return decoded


def work(key: int, payload: bytes = b"payload", **script: Any) -> Work:
    """An item for ``build_scripted``."""
    options = json.dumps(script).encode() if script else b""
    return Work(key=key, payload=payload, meta=b"", options=options)


def make_pool(
    pipeline: str = "build_scripted", options: dict[str, Any] | None = None, **config: Any
) -> tuple[WorkerPool, RecordingEvents]:
    """A pool that is not started; ``config`` goes to ``ModelConfig``."""
    events = RecordingEvents()
    manifest = Manifest(
        name="test-model", pipeline=f"tests.fakes.pipelines:{pipeline}", options=options or {}
    )
    settings = {"slab_bytes": 1 << 20, "max_item_bytes": 1 << 18, **config}
    return WorkerPool(manifest, ModelConfig(**settings), 1, events), events


@asynccontextmanager
async def running_pool(
    pipeline: str = "build_scripted", options: dict[str, Any] | None = None, **config: Any
) -> AsyncIterator[tuple[WorkerPool, RecordingEvents]]:
    """A started pool, closed afterwards; nothing may be left then."""
    with nothing_left():
        pool, events = make_pool(pipeline, options, **config)
        await pool.start()
        try:
            yield pool, events
            pool.check_integrity()
        finally:
            await pool.aclose(asyncio.get_running_loop().time() + 1.0)


class nothing_left:
    """Assert that the block leaves no child process and no descriptor."""

    def __enter__(self) -> None:
        self._fds = set(os.listdir("/proc/self/fd"))
        self._children = set(child_pids())

    def __exit__(self, kind: object, error: object, traceback: object) -> None:
        if error is None:
            assert set(child_pids()) <= self._children, "a process is left"
            assert set(os.listdir("/proc/self/fd")) <= self._fds, "a descriptor is left"


def child_pids() -> list[int]:
    """Workers of this process, zombies included; a browser's driver, and whatever that has
    started, may be there as well."""
    ours: list[int] = []
    foreign: set[int] = set()
    for child in psutil.Process().children(recursive=True):  # parents come first
        try:
            is_foreign = child.ppid() in foreign or _is_driver(child)
        except psutil.NoSuchProcess:
            continue  # it is gone by now
        if is_foreign:
            foreign.add(child.pid)
        else:
            ours.append(child.pid)
    return ours


def _is_driver(process: psutil.Process) -> bool:
    try:
        return "playwright" in " ".join(process.cmdline())
    except psutil.Error:
        return False  # a zombie


def dispatch_all(pool: WorkerPool, batch: Sequence[Work], *, alone: bool = False) -> None:
    """Dispatch a batch that must be taken whole."""
    taken = pool.dispatch(batch, alone=alone)
    assert taken == len(batch), f"{taken} of {len(batch)} taken"
