"""A language-model engine in virtual time: the real scheduler over a fake model, no torch.

The fake model has a known step cost and a cache that it checks: each slot remembers which tokens
led to it, so a wrong block, a block published too early, a lost swap or a stale draft is noticed
at the first token that would attend to it.
"""

from __future__ import annotations

import random
from collections.abc import Iterable
from dataclasses import dataclass, field
from itertools import pairwise

from engine.llm.blocks import BlockPool
from engine.llm.scheduler import PlannedItem, Scheduler, SchedulerConfig, StepPlan, StepShape
from engine.llm.scheduling.planner import MAX_LEAD_S
from engine.llm.sequence import RELEASE_VALID_S, Sequence
from engine.llm.step_cost import StepCost

VOCABULARY = 97


@dataclass(frozen=True, slots=True, kw_only=True)
class FakeStepCost:
    """Milliseconds: a + b * decode rows + c * prefill tokens + d * decode context."""

    base: float = 5.0
    per_decode: float = 1.0
    per_prefill_token: float = 0.5
    per_context_token: float = 0.001

    def step_ms(self, shape: StepShape) -> float:
        return (
            self.base
            + self.per_decode * shape.num_decodes
            + self.per_prefill_token * shape.num_prefill_tokens
            + self.per_context_token * shape.decode_context
        )

    def teach(self, cost: StepCost, max_batch_size: int, max_chunk_tokens: int) -> None:
        """What a warm-up would do: show the scheduler's model some steps."""
        for num_decodes in (0, 1, 2, max_batch_size):
            for num_tokens in (0, 16, 64, max_chunk_tokens):
                for context in (16, 1024):
                    shape = StepShape(
                        num_decodes=num_decodes,
                        num_prefill_tokens=num_tokens,
                        decode_context=num_decodes * context,
                        prefill_context=num_tokens * context,
                    )
                    cost.observe(shape, self.step_ms(shape))


class FakeModel:
    """Continues every prefix in its own way; checks that the cache holds that prefix."""

    def __init__(self, num_blocks: int, block_size: int) -> None:
        self._block_size = block_size
        self._slots: list[int | None] = [None] * (num_blocks * block_size)
        self._host: dict[int, list[int | None]] = {}

    def run(self, plan: StepPlan) -> dict[int, list[int]]:
        """Every sampling item's tokens: the drafts that are right, and one more."""
        for move in plan.swap_out:
            self._host[move.key] = [s for b in move.blocks for s in self._slots[self._range(b)]]
        for move in plan.swap_in:
            content = self._host[move.key]
            for i, block in enumerate(move.blocks):
                self._slots[self._range(block)] = content[self._range(i)]
        return {
            item.sequence.key: tokens
            for item in plan.items
            for tokens in [self._run_item(item)]
            if item.samples
        }

    def settle(self, plan: StepPlan) -> None:
        """The plan was committed."""
        for move in plan.swap_in:
            self._host.pop(move.key, None)  # gone if it was cancelled

    def void(self, plan: StepPlan) -> None:
        """The plan was rolled back."""
        for move in plan.swap_out:
            self._host.pop(move.key, None)

    def forget(self, key: int) -> None:
        self._host.pop(key, None)

    def next_token(self, prefix: Iterable[int]) -> int:
        """What the model says after ``prefix``, whatever else runs."""
        state = 0
        for token in prefix:
            state = _advance(state, token)
        return _token_after(state)

    def _run_item(self, item: PlannedItem) -> list[int]:
        sequence = item.sequence
        state = 0
        for position, token in enumerate(sequence.tokens(0, item.start)):
            state = _advance(state, token)
            assert self._slots[self._slot(sequence, position)] == state, "the cache lost a token"
        said = []
        for i, token in enumerate(item.token_ids):
            state = _advance(state, token)
            self._slots[self._slot(sequence, item.start + i)] = state
            said.append(_token_after(state))
        drafts = item.token_ids[len(item.token_ids) - item.num_drafts :]
        said = said[-item.num_drafts - 1 :]
        num_right = 0
        while num_right < len(drafts) and drafts[num_right] == said[num_right]:
            num_right += 1
        return said[: num_right + 1]

    def _slot(self, sequence: Sequence, position: int) -> int:
        block = sequence.blocks[position // self._block_size]
        return block * self._block_size + position % self._block_size

    def _range(self, block: int) -> slice:
        return slice(block * self._block_size, (block + 1) * self._block_size)


@dataclass
class Answer:
    """What a simulated caller saw. Times in seconds."""

    submitted_at: float
    reason: str = ""  # length, cancelled or deadline; empty while it runs
    tokens: list[int] = field(default_factory=list)
    token_times: list[float] = field(default_factory=list)
    ended_at: float | None = None

    @property
    def gaps_s(self) -> list[float]:
        return [later - earlier for earlier, later in pairwise(self.token_times)]


class Simulator:
    """Runs the scheduler step by step; ``now`` moves by what the fake model's steps cost."""

    def __init__(
        self,
        config: SchedulerConfig | None = None,
        *,
        num_blocks: int = 1024,
        block_size: int = 16,
        model_cost: FakeStepCost | None = None,
        prefix_cache: bool = True,
        taught: bool = True,
    ) -> None:
        self.config = config or SchedulerConfig()
        self.pool = BlockPool(num_blocks, block_size, prefix_cache=prefix_cache)
        self.cost = StepCost()
        self.model_cost = model_cost or FakeStepCost()
        if taught:
            self.model_cost.teach(
                self.cost, self.config.max_batch_size, self.config.max_chunk_tokens
            )
        self.scheduler = Scheduler(self.config, self.pool, self.cost)
        self.model = FakeModel(num_blocks, block_size)
        self.now = 0.0
        self.answers: dict[int, Answer] = {}
        self.prompts: dict[int, list[int]] = {}
        self.plans: list[StepPlan] = []
        self._sampled: dict[int, list[int]] = {}
        self._next_key = 0

    def submit(
        self,
        num_prompt: int | list[int],
        max_tokens: int | None = 16,
        *,
        rank: int = 1,
        tenant: str = "",
        weight: float = 1.0,
        deadline: float | None = None,
        arrived_at: float | None = None,
    ) -> Sequence:
        """A prompt of that many tokens of its own, or of those tokens."""
        self._next_key += 1
        key = self._next_key
        if isinstance(num_prompt, int):
            prompt_ids = random.Random(key).choices(range(VOCABULARY), k=num_prompt)
        else:
            prompt_ids = num_prompt
        at = self.now if arrived_at is None else arrived_at
        sequence = Sequence(
            key=key,
            prompt_ids=prompt_ids,
            max_tokens=max_tokens,
            rank=rank,
            tenant=tenant,
            weight=weight,
            deadline=deadline,
            arrived_at=at,
        )
        self.scheduler.submit(sequence, self.now)
        self.answers[key] = Answer(at)
        self.prompts[key] = prompt_ids
        return sequence

    def guess(self, sequence: Sequence, num_right: int, num_wrong: int = 0) -> None:
        """Offer drafts for the next step: right ones, then wrong ones."""
        tokens = [*sequence.prompt_ids, *sequence.output_ids]
        drafts: list[int] = []
        for i in range(num_right + num_wrong):
            token = self.model.next_token([*tokens, *drafts])
            drafts.append(token if i < num_right else (token + 1) % VOCABULARY)
        sequence.drafts = drafts

    def cancel(self, key: int) -> None:
        if self.scheduler.cancel(key):
            self._end(key, "cancelled")

    def expire(self) -> None:
        for key in self.scheduler.expire(self.now):
            self._end(key, "deadline")

    def begin(self, max_rows: int | None = None) -> StepPlan | None:
        """Expire, plan and let the model run; what comes until ``complete`` comes meanwhile."""
        self.expire()
        plan = self.scheduler.plan(self.now, max_rows=max_rows)
        if plan is not None:
            self._sampled = self.model.run(plan)
        return plan

    def complete(self, plan: StepPlan) -> None:
        """The step is over: take its tokens in."""
        self.plans.append(plan)
        sampled = self._sampled
        self.now += self.model_cost.step_ms(plan.shape) / 1000
        self.scheduler.commit(plan, sampled, self.now)
        self.model.settle(plan)
        for key, tokens in sampled.items():
            answer = self.answers[key]
            if answer.reason:
                continue
            answer.tokens += tokens
            answer.token_times += [self.now] * len(tokens)
            sequence = self.scheduler.get(key)
            assert sequence is not None
            if sequence.num_left == 0:
                self.scheduler.finish(key)
                self._end(key, "length")

    def fail(self, plan: StepPlan) -> None:
        """The step failed after it wrote all it could."""
        self.scheduler.rollback(plan)
        self.model.void(plan)

    def step(self) -> StepPlan | None:
        plan = self.begin()
        if plan is not None:
            self.complete(plan)
        return plan

    def run_until(self, until: float) -> None:
        """Step while there is work and time; idle time passes at once."""
        while self.now < until:
            if self.step() is None:
                self.now = until

    @property
    def waits_for_readers(self) -> bool:
        """Whether somebody is left out because its reader has much unread text."""
        known = (self.scheduler.get(key) for key in self.answers)
        return any(sequence is not None and sequence.laxity_s > MAX_LEAD_S for sequence in known)

    def drain(self, max_steps: int = 100_000) -> None:
        """Step until everybody is answered; of readers nothing more is heard."""
        for _ in range(max_steps):
            if self.step() is None:
                if not self.scheduler.has_work:
                    return
                assert self.waits_for_readers, "work, but nothing to run"
                self.now += RELEASE_VALID_S
            self.check()
        raise AssertionError("not drained")

    def check(self) -> None:
        """Assert what holds after every step."""
        self.scheduler.check_integrity()

    def _end(self, key: int, reason: str) -> None:
        answer = self.answers[key]
        assert not answer.reason, "answered twice"
        answer.reason = reason
        answer.ended_at = self.now
        self.model.forget(key)


def _advance(state: int, token: int) -> int:
    return (state * 1_000_003 + token + 1) % ((1 << 61) - 1)


def _token_after(state: int) -> int:
    return (state >> 7) % VOCABULARY
