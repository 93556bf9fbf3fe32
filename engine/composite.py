"""Several engines as one: pictures, prompts and upstream servers behind the same door."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

from engine.base import Engine, EngineStatistics, Lane, Reloadable
from engine.errors import Unavailable, UnknownModel
from engine.together import aclose_together, start_together
from engine.types import Emit, LaneSpec


class CompositeEngine:
    """Implements :class:`engine.base.Engine` and :class:`engine.base.Reloadable` by asking the
    engine that has the model.

    The models are those that the engines' statistics list at construction.
    """

    def __init__(self, engines: Sequence[Engine]) -> None:
        self._engines = tuple(engines)
        self._parts = {f"engine-{index}": engine for index, engine in enumerate(engines)}
        self._by_model: dict[str, Engine] = {}
        for engine in self._engines:
            for model in engine.statistics().models:
                if model.model in self._by_model:
                    raise ValueError(f"two engines serve a model named {model.model!r}")
                self._by_model[model.model] = engine
        self._is_closed = False

    async def start(self) -> None:
        """Start all engines at once; see :meth:`engine.base.Engine.start`."""
        try:
            await start_together(self._parts)
        except BaseException:
            await self.aclose(asyncio.get_running_loop().time())
            raise

    def open_lane(self, spec: LaneSpec, emit: Emit) -> Lane:
        if self._is_closed:
            raise Unavailable("the engine is closing")
        engine = self._by_model.get(spec.model)
        if engine is None:
            raise UnknownModel(f"no model {spec.model!r}")
        return engine.open_lane(spec, emit)

    async def reload(self, model: str, version: str | None = None) -> str:
        """See :meth:`engine.base.Reloadable.reload`."""
        return await self._reloadable(model).reload(model, version)

    async def unload(self, model: str) -> None:
        """See :meth:`engine.base.Reloadable.unload`."""
        await self._reloadable(model).unload(model)

    def statistics(self) -> EngineStatistics:
        statistics = (engine.statistics().models for engine in self._engines)
        return EngineStatistics(models=tuple(model for models in statistics for model in models))

    async def aclose(self, deadline: float) -> None:
        self._is_closed = True
        await aclose_together(self._parts, deadline)

    def _reloadable(self, model: str) -> Reloadable:
        engine = self._by_model.get(model)
        if engine is None:
            raise UnknownModel(f"no model {model!r}")
        if not isinstance(engine, Reloadable):
            raise Unavailable(f"model {model!r} cannot be reloaded")
        return engine
