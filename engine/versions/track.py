"""One version of one model (in one precision) being served: its batcher and its workers."""

from __future__ import annotations

import asyncio
from typing import Protocol

from engine.batching.batcher import ModelBatcher
from engine.batching.executor import Executor, ExecutorEvents
from engine.config import ModelConfig
from engine.manifest import Manifest
from engine.versions.figures import Figures
from engine.workers.pool import PoolStatistics


class Pool(Executor, Protocol):
    """An executor with a life of its own; :class:`engine.workers.pool.WorkerPool` in the
    product."""

    async def start(self) -> None:
        """Raises ``StartupError`` and leaves nothing behind when a worker cannot start."""

    async def aclose(self, deadline: float) -> None:
        """Finish until ``deadline`` (loop time), then stop; idempotent."""

    def tend(self, queue_age_s: float) -> None:
        """Look after the workers; a few times a second."""

    def statistics(self) -> PoolStatistics: ...


class PoolFactory(Protocol):
    """``threads`` per worker, all models together within the container's cores; only stores."""

    def __call__(
        self, manifest: Manifest, config: ModelConfig, threads: int, events: ExecutorEvents
    ) -> Pool: ...


class Track:
    """Starts, serves and drains as one; runs on the event loop's thread."""

    def __init__(
        self,
        name: str,
        manifest: Manifest,
        config: ModelConfig,
        threads: int,
        pool_factory: PoolFactory,
    ) -> None:
        self.manifest = manifest
        self.figures = Figures()
        self.batcher = ModelBatcher(name, config)
        self.pool = pool_factory(manifest, config, threads, self.batcher)

    @property
    def version(self) -> str:
        """As results name it: the precision is part of it where it is not the original's."""
        return self.manifest.version

    async def start(self) -> None:
        """Spawn and warm up; raises ``StartupError`` and leaves nothing behind."""
        await self.pool.start()
        self.batcher.start(self.pool)

    def tend(self) -> None:
        """Look after the workers."""
        self.pool.tend(self.figures.queue_age_s(asyncio.get_running_loop().time()))

    @property
    def fault(self) -> str:
        """Why it serves nothing, or empty."""
        return self.pool.statistics().reason or self.batcher.unavailable or ""

    async def aclose(self, deadline: float) -> None:
        """Answer what was accepted until ``deadline``, drop the rest, end the workers."""
        try:
            await self.batcher.aclose(deadline)
        finally:
            await self.pool.aclose(deadline)
