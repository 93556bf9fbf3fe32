"""The engine for pictures and tensors: several models, each with its versions and workers."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping

from engine.base import EngineStatistics, Lane
from engine.config import ModelConfig
from engine.errors import Unavailable, UnknownModel
from engine.manifest import Manifest
from engine.models.repository import Repository
from engine.types import Emit, LaneSpec
from engine.versions.served_model import ServedModel
from engine.versions.track import PoolFactory
from engine.workers.pool import WorkerPool
from engine.workers.quota import available_cores, threads_per_worker


class VisionEngine:
    """Implements :class:`engine.base.Engine` and :class:`engine.base.Reloadable`; one per event
    loop, called on its thread only.

    ``models`` maps the name that callers use to what it is and how it is served; a model with a
    repository can change its version while it serves. ``service_level`` says how much pressure
    there is: 0 none, each step up takes the next of a model's variants.
    """

    def __init__(
        self,
        models: Mapping[str, tuple[Manifest, ModelConfig]],
        pool_factory: PoolFactory = WorkerPool,
        *,
        repositories: Mapping[str, Repository] | None = None,
        service_level: Callable[[], int] = lambda: 0,
    ) -> None:
        self._models = {
            name: ServedModel(
                name,
                manifest,
                config,
                pool_factory,
                repository=(repositories or {}).get(name),
                service_level=service_level,
            )
            for name, (manifest, config) in models.items()
        }
        self._is_closed = False

    async def start(self) -> None:
        """Start all models at once; see :meth:`engine.base.Engine.start`."""
        num_workers = sum(model.config.most_workers for model in self._models.values())
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
        return self._model(spec.model).open_lane(spec, emit)

    async def reload(self, model: str, version: str | None = None) -> str:
        """See :meth:`engine.base.Reloadable.reload`."""
        return await self._model(model).reload(version)

    async def unload(self, model: str) -> None:
        """See :meth:`engine.base.Reloadable.unload`."""
        await self._model(model).unload()

    def statistics(self) -> EngineStatistics:
        return EngineStatistics(models=tuple(m.statistics() for m in self._models.values()))

    def check_integrity(self) -> None:
        """Assert that every model's books agree; for tests."""
        for model in self._models.values():
            model.check_integrity()

    async def aclose(self, deadline: float) -> None:
        self._is_closed = True
        async with asyncio.TaskGroup() as closing:
            for name, model in self._models.items():
                closing.create_task(model.aclose(deadline), name=f"close-{name}")

    def _model(self, name: str) -> ServedModel:
        model = self._models.get(name)
        if model is None:
            raise UnknownModel(f"no model {name!r}")
        return model
