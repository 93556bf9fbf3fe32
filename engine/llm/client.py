"""The engine for prompts: language models, each in a worker process of its own."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping

from engine.base import EngineStatistics, TextLane
from engine.config import LlmConfig
from engine.errors import Unavailable, UnknownModel
from engine.llm.door import PromptDoor
from engine.llm.host import HostFactory, LlmHost
from engine.manifest import Manifest
from engine.together import aclose_together, start_together
from engine.types import Emit, LaneSpec


class LlmEngine:
    """Implements :class:`engine.base.Engine`; one per event loop, called on its thread only.

    An item's payload is JSON of :class:`engine.llm.request.PromptPayload`, its options JSON of
    ``PromptOptions``; its answer is a ``Progress`` per token and a ``Result`` whose data is JSON of
    ``FinishedAnswer``. Lanes are :class:`engine.base.TextLane`; ``offer`` also raises
    ``InvalidInput``. A prompt whose worker dies before its first token is tried once more, one
    that has begun fails with ``Unavailable``. ``service_level`` says how much pressure there is: 0
    none; above, models with ``cheaper_weights`` run with those, and who was answered with their
    help is told the version ``1+int8``.
    """

    def __init__(
        self,
        models: Mapping[str, tuple[Manifest, LlmConfig]],
        host_factory: HostFactory = LlmHost,
        *,
        service_level: Callable[[], int] = lambda: 0,
    ) -> None:
        self._doors = {
            name: PromptDoor(name, manifest, config, host_factory, service_level)
            for name, (manifest, config) in models.items()
        }
        self._is_closed = False

    async def start(self) -> None:
        """Start all models at once; see :meth:`engine.base.Engine.start`."""
        try:
            await start_together(self._doors)
        except BaseException:
            await self.aclose(asyncio.get_running_loop().time())
            raise

    def open_lane(self, spec: LaneSpec, emit: Emit) -> TextLane:
        if self._is_closed:
            raise Unavailable("the engine is closing")
        door = self._doors.get(spec.model)
        if door is None:
            raise UnknownModel(f"no model {spec.model!r}")
        if spec.version not in (None, door.manifest.version):
            raise UnknownModel(
                f"model {spec.model!r} has version {door.manifest.version!r}, not {spec.version!r}"
            )
        return door.open_lane(spec, emit)

    def statistics(self) -> EngineStatistics:
        return EngineStatistics(models=tuple(door.statistics() for door in self._doors.values()))

    def check_integrity(self) -> None:
        """Assert that every model's books agree; for tests."""
        for door in self._doors.values():
            door.check_integrity()

    async def aclose(self, deadline: float) -> None:
        self._is_closed = True
        await aclose_together(self._doors, deadline)
