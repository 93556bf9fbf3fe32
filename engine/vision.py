"""The engine for pictures and tensors: several models, each with its batcher and its workers."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from typing import Protocol

from engine.base import EngineStatistics, Lane, ModelStatistics
from engine.batching.batcher import ModelBatcher
from engine.batching.executor import Executor, ExecutorEvents
from engine.config import ModelConfig
from engine.errors import Unavailable, UnknownModel
from engine.manifest import Manifest
from engine.types import Emit, LaneSpec
from engine.workers.pool import PoolStatistics, WorkerPool
from engine.workers.quota import available_cores, threads_per_worker


class Pool(Executor, Protocol):
    """An executor with a life of its own; :class:`WorkerPool` in the product."""

    async def start(self) -> None:
        """Raises ``StartupError`` and leaves nothing behind when a worker cannot start."""

    async def aclose(self, deadline: float) -> None:
        """Finish until ``deadline`` (loop time), then stop; idempotent."""

    def statistics(self) -> PoolStatistics: ...


class PoolFactory(Protocol):
    """``threads`` per worker, all models together within the container's cores; only stores."""

    def __call__(
        self, manifest: Manifest, config: ModelConfig, threads: int, events: ExecutorEvents
    ) -> Pool: ...


class VisionEngine:
    """Implements :class:`engine.base.Engine`; one per event loop, called on its thread only.

    ``models`` maps the name that callers use to what it is and how it is served.
    """

    def __init__(
        self,
        models: Mapping[str, tuple[Manifest, ModelConfig]],
        pool_factory: PoolFactory = WorkerPool,
    ) -> None:
        self._models = {
            name: _ServedModel(name, manifest, config, pool_factory)
            for name, (manifest, config) in models.items()
        }
        self._is_closed = False

    async def start(self) -> None:
        """Start all models at once; see :meth:`engine.base.Engine.start`."""
        num_workers = sum(model.config.workers for model in self._models.values())
        cores = available_cores()
        try:
            async with asyncio.TaskGroup() as starting:
                for name, model in self._models.items():
                    threads = threads_per_worker(model.config.threads, num_workers, cores)
                    starting.create_task(model.start(threads), name=f"start-{name}")
        except BaseException as error:
            await self.aclose(asyncio.get_running_loop().time())
            if isinstance(error, BaseExceptionGroup):
                raise error.exceptions[0] from None  # the first to fail cancelled the others
            raise

    def open_lane(self, spec: LaneSpec, emit: Emit) -> Lane:
        if self._is_closed:
            raise Unavailable("the engine is closing")
        model = self._models.get(spec.model)
        if model is None:
            raise UnknownModel(f"no model {spec.model!r}")
        if spec.version not in (None, model.manifest.version):
            raise UnknownModel(
                f"model {spec.model!r} has version {model.manifest.version!r}, not {spec.version!r}"
            )
        return model.batcher.open_lane(spec, emit)

    def statistics(self) -> EngineStatistics:
        return EngineStatistics(models=tuple(m.statistics() for m in self._models.values()))

    def check_integrity(self) -> None:
        """Assert that every model's books agree; for tests."""
        for model in self._models.values():
            model.batcher.check_integrity()

    async def aclose(self, deadline: float) -> None:
        self._is_closed = True
        async with asyncio.TaskGroup() as closing:
            for name, model in self._models.items():
                closing.create_task(model.aclose(deadline), name=f"close-{name}")


class _ServedModel:
    def __init__(
        self, name: str, manifest: Manifest, config: ModelConfig, pool_factory: PoolFactory
    ) -> None:
        self.manifest = manifest
        self.config = config
        self.batcher = ModelBatcher(name, config)
        self._name = name
        self._pool_factory = pool_factory
        self._pool: Pool | None = None

    async def start(self, threads: int) -> None:
        self._pool = self._pool_factory(self.manifest, self.config, threads, self.batcher)
        await self._pool.start()
        self.batcher.start(self._pool)

    async def aclose(self, deadline: float) -> None:
        try:
            await self.batcher.aclose(deadline)
        finally:
            if self._pool is not None:
                await self._pool.aclose(deadline)

    def statistics(self) -> ModelStatistics:
        batcher, counters, pool = self.batcher, self.batcher.counters, self._pool_statistics()
        reason = pool.reason or batcher.unavailable or ""
        return ModelStatistics(
            model=self._name,
            version=self.manifest.version,
            ready=pool.ready and not reason,
            reason=reason,
            workers_alive=pool.workers_alive,
            workers_wanted=pool.workers_wanted,
            worker_restarts=pool.restarts,
            worker_rss_bytes=pool.rss_bytes,
            providers=pool.providers,
            lanes=batcher.num_lanes,
            queued=batcher.num_queued,
            in_flight=batcher.num_in_flight,
            accepted=counters.accepted,
            results=counters.results,
            dropped=dict(counters.dropped),
            failed=counters.failed,
            cancelled=counters.cancelled,
            batches=counters.batches,
            retried=counters.retried,
            predicted_run_s=batcher.predicted_run_s,
        )

    def _pool_statistics(self) -> PoolStatistics:
        if self._pool is not None:
            return self._pool.statistics()
        return PoolStatistics(
            ready=False,
            reason="not started",
            workers_alive=0,
            workers_wanted=self.config.workers,
            restarts=0,
        )
