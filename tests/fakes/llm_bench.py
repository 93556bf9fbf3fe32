"""A runner over the fake model in virtual time, with the text stage behind it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

from engine.llm.answer import Answer, Growth
from engine.llm.blocks import BlockPool
from engine.llm.generation import Generation
from engine.llm.messages import Finish
from engine.llm.request import Sampling
from engine.llm.runner import Runner
from engine.llm.scheduler import Scheduler
from engine.llm.scheduling.plan import SchedulerConfig
from engine.llm.sequence import Sequence as TokenSequence
from engine.llm.speculation import LookAhead, NgramIndex
from engine.llm.step_cost import StepCost
from tests.fakes.llm_model import FakeModel, Group

GREEDY = Sampling(temperature=0.0)
MAX_SEQ_LENGTH = 256


class NumberText:
    """Text that is the token ids themselves; ends at one of ``stops``."""

    def __init__(self, stops: frozenset[int] = frozenset()) -> None:
        self.stopped: str | None = None
        self._stops = stops

    def push(self, token_id: int) -> str:
        if token_id in self._stops:
            self.stopped = "stop"
            return ""
        return f"{token_id} "

    def finish(self) -> str:
        return ""


@dataclass(slots=True)
class Received:
    """What one caller got."""

    texts: list[str] = field(default_factory=list)
    finish: Finish | None = None

    @property
    def tokens(self) -> list[int]:
        return [int(text) for text in self.texts if text]


class RunnerBench:
    """``step_s`` is what a step takes, by the rows it computes."""

    def __init__(
        self,
        *,
        num_blocks: int = 64,
        block_size: int = 4,
        memory: int = 0,
        end_ids: frozenset[int] = frozenset(),
        speculative_tokens: int = 0,
        step_s: Callable[[int], float] = lambda rows: 0.01 + 0.0001 * rows,
        prefix_cache: bool = True,
        **config: Any,
    ) -> None:
        self.now = 0.0
        self.before_step: Callable[[Sequence[Group]], None] = lambda groups: None
        self.step_s = step_s
        self.received: dict[int, Received] = {}
        self.model = FakeModel(num_blocks, block_size, memory=memory, before_step=self._spend)
        self.pool = BlockPool(num_blocks, block_size, prefix_cache=prefix_cache)
        config = {"max_seq_length": MAX_SEQ_LENGTH, **config}
        self.scheduler = Scheduler(SchedulerConfig(**config), self.pool, StepCost())
        self.runner = Runner(self.model, self.scheduler, end_ids, clock=lambda: self.now)
        self._speculative_tokens = speculative_tokens

    def submit(
        self,
        key: int,
        prompt: Sequence[int],
        sampling: Sampling = GREEDY,
        stops: frozenset[int] = frozenset(),
        **options: Any,
    ) -> None:
        """``options`` are those of the engine's ``Sequence``."""
        sequence = TokenSequence(
            key=key,
            prompt_ids=list(prompt),
            max_tokens=sampling.max_tokens,
            arrived_at=self.now,
            **options,
        )
        ahead = None
        if self._speculative_tokens:
            ahead = LookAhead(NgramIndex(prompt, MAX_SEQ_LENGTH), self._speculative_tokens)
        generation = Generation(
            sequence=sequence,
            sampling=sampling,
            answer=Answer(key, len(prompt), NumberText(stops)),
            look_ahead=ahead,
        )
        self.runner.submit(generation)
        self.received[key] = Received()

    def step(self) -> None:
        """One step, and its text; a sequence whose text stopped is cancelled, as in the worker."""
        self.tell(self.runner.step())
        self.scheduler.check_integrity()

    def tell(self, growths: Sequence[Growth]) -> None:
        for growth in growths:
            item = growth.answer.grow(growth)
            if item is None:
                continue
            received = self.received[item.key]
            assert received.finish is None, "news after the end"
            received.texts += item.texts
            received.finish = item.finish
            if growth.answer.has_ended and not growth.reason:
                self.runner.cancel(item.key)

    def run(self, max_steps: int = 2000) -> None:
        """Step until nothing is left to do."""
        for _ in range(max_steps):
            if self.runner.is_idle:
                return
            self.step()
        raise AssertionError(f"not finished after {max_steps} steps")

    def check_empty(self) -> None:
        """Assert that nothing is left behind."""
        self.scheduler.check_integrity()
        assert self.runner.is_idle
        assert self.pool.num_owned == 0
        assert self.runner.num_host_copies == 0

    def _spend(self, groups: Sequence[Group]) -> None:
        self.now += self.step_s(sum(len(group.token_ids) for group in groups))
        self.before_step(groups)
