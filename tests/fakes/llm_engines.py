"""A :class:`LlmEngine` with worker processes for tests, which must leave nothing behind."""

from __future__ import annotations

import asyncio
import functools
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any

from engine.base import ModelStatistics, TextLane
from engine.config import LlmConfig
from engine.llm.client import LlmEngine
from engine.llm.host import LlmHost
from engine.manifest import Manifest
from engine.types import Item, LaneSpec, Outcome, Policy, Progress
from tests.fakes.pools import nothing_left

WAIT_S = 20.0
FAKE_WORKER = "tests.fakes.llm_worker"


class LlmStreams:
    """Offers prompts to the only model and writes down what is told; ids are its own."""

    def __init__(self, engine: LlmEngine) -> None:
        self.engine = engine
        self.texts: dict[int, str] = {}
        self.outcomes: dict[int, Outcome] = {}
        self._num_items = 0
        self._changed = asyncio.Event()

    @property
    def statistics(self) -> ModelStatistics:
        (model,) = self.engine.statistics().models
        return model

    def lane(self) -> TextLane:
        spec = LaneSpec(model=self.statistics.model, policy=Policy.FIFO, capacity=4096)
        return self.engine.open_lane(spec, self._emit)

    def ask(self, lane: TextLane, payload: bytes, deadline: float | None = None) -> int:
        item_id, self._num_items = self._num_items, self._num_items + 1
        lane.offer(Item(id=item_id, payload=payload, deadline=deadline))
        return item_id

    async def wait(self, condition: Callable[[], bool], wait_s: float = WAIT_S) -> None:
        """Looks again at every news, and now and then."""
        async with asyncio.timeout(wait_s):
            while not condition():
                self._changed.clear()
                try:
                    async with asyncio.timeout(0.02):
                        await self._changed.wait()
                except TimeoutError:
                    pass

    async def outcome(self, item_id: int) -> Outcome:
        await self.wait(lambda: item_id in self.outcomes)
        return self.outcomes[item_id]

    def _emit(self, item_id: int, news: Progress | Outcome) -> None:
        assert item_id not in self.outcomes, "told after its outcome"
        if isinstance(news, Progress):
            self.texts[item_id] = self.texts.get(item_id, "") + news.text
        else:
            self.outcomes[item_id] = news
        self._changed.set()


def make_llm(
    options: dict[str, Any] | None = None, *, module: str = FAKE_WORKER, **config: Any
) -> LlmEngine:
    """An engine that is not started; ``options`` steer the fake worker."""
    manifest = Manifest(name="echo", options=options or {})
    factory = functools.partial(LlmHost, module=module)
    return LlmEngine({"echo": (manifest, LlmConfig(**config))}, factory)


@asynccontextmanager
async def running_llm_engine(
    options: dict[str, Any] | None = None, **config: Any
) -> AsyncIterator[LlmStreams]:
    """A started engine, closed afterwards; nothing may be left then."""
    with nothing_left():
        engine = make_llm(options, **config)
        await engine.start()
        streams = LlmStreams(engine)
        try:
            yield streams
            engine.check_integrity()
        finally:
            await engine.aclose(asyncio.get_running_loop().time() + 1.0)
