"""A model's batcher over a fake executor, with short calls for tests."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from typing import Any

from engine.batching.batcher import BatcherLane, ModelBatcher
from engine.config import ModelConfig
from engine.types import Item, LaneSpec, Outcome, Policy, Progress, Result
from tests.fakes.executor import FakeExecutor


class ModelBench:
    """A batcher over a fake executor; ``config`` is the model's, ``told`` what every lane was told,
    and when."""

    def __init__(
        self,
        *,
        window_ms: float = 5.0,
        max_batch_size: int = 4,
        config: Mapping[str, Any] | None = None,
        **executor: object,
    ):
        model_config = ModelConfig(
            max_batch_size=max_batch_size,
            batch_timeout_millis=window_ms,
            max_concurrent_requests=9,
            **(config or {}),
        )
        self.batcher = ModelBatcher("m", model_config)
        self.executor = FakeExecutor(self.batcher, **executor)  # type: ignore[arg-type]
        self.batcher.start(self.executor)
        self.told: list[tuple[float, int, Progress | Outcome]] = []
        self.reactions: dict[int, Callable[[], None]] = {}
        self.faults: list[AssertionError] = []
        self.next_id = 0

    def lane(self, policy: Policy = Policy.FIFO, capacity: int = 9) -> BatcherLane:
        spec = LaneSpec(model="m", policy=policy, capacity=capacity)
        return self.batcher.open_lane(spec, self._emit)

    def offer(self, lane: BatcherLane, budget_s: float | None = None) -> int:
        """Offer an item whose payload is its id; returns the id."""
        self.next_id += 1
        now = asyncio.get_running_loop().time()
        deadline = None if budget_s is None else now + budget_s
        lane.offer(Item(id=self.next_id, payload=b"%d" % self.next_id, deadline=deadline))
        self.batcher.check_integrity()
        return self.next_id

    def outcomes(self) -> dict[int, Outcome]:
        """By item; fails if an item was told twice, or a result has another item's answer."""
        answers = {item_id: outcome for _, item_id, outcome in self.told}
        assert len(answers) == len(self.told)
        assert self.faults == []
        for item_id, outcome in answers.items():
            assert not isinstance(outcome, Result) or outcome.data == b"%d" % item_id
        self.batcher.check_integrity()
        return answers  # type: ignore[return-value]

    def _emit(self, item_id: int, outcome: Progress | Outcome) -> None:
        self.told.append((asyncio.get_running_loop().time(), item_id, outcome))
        try:
            self.batcher.check_integrity()
        except AssertionError as fault:  # the batcher would log it and go on
            self.faults.append(fault)
        self.reactions.get(item_id, lambda: None)()
