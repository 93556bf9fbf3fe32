"""A :class:`LlmEngine` over fake hosts, and streams that write down what they are told."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any

from engine.base import ModelStatistics, TextLane
from engine.config import LlmConfig
from engine.llm.client import LlmEngine
from engine.llm.host import HostEvents
from engine.llm.messages import CancelKeys, Submit
from engine.manifest import Manifest
from engine.types import Item, LaneSpec, Outcome, Policy, Progress
from tests.fakes.echo_llm import prompt
from tests.fakes.llm_host import FakeLlmHost

STEP_S = 0.01


class LlmClientBench:
    """One model, "echo"; each item has an id of its own across all lanes."""

    def __init__(self, service_level: Callable[[], int] = lambda: 0, **config: Any) -> None:
        self.hosts: list[FakeLlmHost] = []
        models = {"echo": (Manifest(name="echo"), LlmConfig(**config))}
        self.engine = LlmEngine(models, self._build_host, service_level=service_level)
        self.texts: dict[int, list[str]] = {}
        self.outcomes: dict[int, Outcome] = {}
        self.faults: list[AssertionError] = []
        self.on_emit: Callable[[], None] = lambda: None
        self._num_items = 0

    @property
    def host(self) -> FakeLlmHost:
        return self.hosts[0]

    @property
    def submits(self) -> list[Submit]:
        return [message for message in self.host.sent if isinstance(message, Submit)]

    @property
    def cancels(self) -> list[CancelKeys]:
        return [message for message in self.host.sent if isinstance(message, CancelKeys)]

    @property
    def statistics(self) -> ModelStatistics:
        (model,) = self.engine.statistics().models
        return model

    def lane(self, policy: Policy = Policy.FIFO, capacity: int = 1000, **spec: Any) -> TextLane:
        lane_spec = LaneSpec(model="echo", policy=policy, capacity=capacity, **spec)
        return self.engine.open_lane(lane_spec, self.emit)

    def ask(self, lane: TextLane, text: str = "tell me more", **item: Any) -> int:
        """Offer a prompt; returns the item's id."""
        item_id = self._num_items
        lane.offer(Item(id=item_id, payload=prompt(text), **item))
        self._num_items += 1
        self.engine.check_integrity()
        return item_id

    def emit(self, item_id: int, news: Progress | Outcome) -> None:
        try:
            assert item_id not in self.outcomes, "told after its outcome"
            self.engine.check_integrity()
        except AssertionError as fault:  # the engine would log it and go on
            self.faults.append(fault)
        if isinstance(news, Progress):
            self.texts.setdefault(item_id, []).append(news.text)
        else:
            self.outcomes[item_id] = news
        self.on_emit()

    def _build_host(self, manifest: Manifest, config: LlmConfig, events: HostEvents) -> FakeLlmHost:
        self.hosts.append(FakeLlmHost(manifest, config, events, step_s=STEP_S))
        return self.hosts[-1]


@asynccontextmanager
async def running_llm(**config: Any) -> AsyncIterator[LlmClientBench]:
    """A started engine; ``config`` goes to ``LlmConfig``."""
    bench = LlmClientBench(**config)
    await bench.engine.start()
    try:
        yield bench
        bench.engine.check_integrity()
        assert bench.faults == []
    finally:
        await bench.engine.aclose(asyncio.get_running_loop().time())
