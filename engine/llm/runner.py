"""Generates tokens step by step: plan, compute, choose, commit.

A step is a transaction. Whatever fails between plan and commit, the scheduler and its block pool
are rolled back to where they were before, and the sequences can be run again.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable
from typing import NamedTuple

from engine.llm.answer import Growth
from engine.llm.generation import Generation
from engine.llm.messages import Gauges, Release
from engine.llm.metering import Meter
from engine.llm.row_limit import RowLimit, is_out_of_memory
from engine.llm.scheduler import Scheduler
from engine.llm.scheduling.plan import PlannedItem, StepPlan
from engine.llm.sequence import SequenceState
from engine.llm.speculation import count_right
from engine.llm.step_executor import Model, StepExecutor


class _Chosen(NamedTuple):
    """What a step adds to a sequence, and why it ends with that, if it does."""

    tokens: list[int]
    reason: str


class Runner:
    """Owns the model and the scheduler. One thread; nothing here blocks but the model.

    A generation that was taken in is answered by growths, the last of which has a reason, unless
    it is cancelled. ``end_ids`` are the model's end tokens; ``clock`` is the one that arrivals
    and deadlines are told by, in seconds.
    """

    def __init__(
        self,
        model: Model,
        scheduler: Scheduler,
        end_ids: frozenset[int],
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._meter = Meter()
        self.num_steps = 0  # committed
        self.is_cheaper = False  # steps run with the model's cheaper weights
        self._executor = StepExecutor(model)
        self._scheduler = scheduler
        self._end_ids = end_ids
        self._clock = clock
        self._row_limit = RowLimit()
        self._generations: dict[int, Generation] = {}
        self._untold: list[Growth] = []  # a step that fails must not lose them
        self._failed_keys: frozenset[int] = frozenset()  # who was in the step that failed last

    @property
    def is_idle(self) -> bool:
        return not self._generations

    @property
    def num_host_copies(self) -> int:
        """Preempted sequences whose keys and values wait in host memory."""
        return self._executor.num_host_copies

    def submit(self, generation: Generation) -> None:
        """Take in a generation.

        Raises:
            InvalidInput: it never fits into the cache.
            Overloaded: too many are waiting.
        """
        self._scheduler.submit(generation.sequence, self._clock())
        self._generations[generation.key] = generation

    def cancel(self, key: int) -> None:
        """Forget a generation and free its blocks; unknown keys are ignored."""
        if key in self._generations:
            self._end(key)

    def note_releases(self, releases: Iterable[Release]) -> None:
        """How far the readers are."""
        for release in releases:
            at = release.at_us / 1e6
            self._scheduler.set_release(release.key, release.released, release.tokens_per_s, at)

    def use_cheaper(self, is_on: bool) -> None:
        """From the next step on, for everybody; the model has such weights. What is in the cache
        stays valid for who is using it."""
        if is_on is not self.is_cheaper:
            self._executor.use_cheaper(is_on)
            self._scheduler.use_cheaper(is_on)
            self.is_cheaper = is_on

    def step(self) -> list[Growth]:
        """Run one step, if there is anything to run (``num_steps`` tells).

        Raises:
            Exception: the step failed and was rolled back; every generation is as it was.
        """
        now = self._clock()
        self._untold += [
            _growth(self._end(key), _Chosen([], "deadline")) for key in self._scheduler.expire(now)
        ]
        self._guess()
        while (plan := self._scheduler.plan(now, max_rows=self._row_limit.max_rows)) is not None:
            try:
                choices = self._executor.run(plan, self._generations)
            except BaseException as error:
                self._roll_back(plan)
                self._failed_keys = frozenset(item.sequence.key for item in plan.items)
                if not is_out_of_memory(error) or not self._row_limit.try_shrink(_num_rows(plan)):
                    raise
            else:
                self._untold += self._commit(plan, choices)
                self._row_limit.note_success()
                break
        return self._tell()

    def fail_all(self, reference: str) -> list[Growth]:
        """End everything: who ever was in a step with an error, under whose ``reference`` the log
        has the cause. Nothing is told of who only waited: the next worker can take it as new."""
        for key in list(self._generations):
            generation = self._end(key)
            if generation.started_at is not None or key in self._failed_keys:
                growth = Growth(answer=generation.answer, reason="error", detail=reference)
                self._untold.append(growth)
        return self._tell()

    def gauges(self) -> Gauges:
        """How things stand."""
        scheduler, meter = self._scheduler.statistics(), self._meter
        step_p50_s, step_p99_s = meter.step_quantiles_s()
        return Gauges(
            running=scheduler.running,
            waiting=scheduler.waiting,
            blocks_total=scheduler.blocks.total,
            blocks_owned=scheduler.blocks.owned,
            blocks_cached=scheduler.blocks.cached,
            fragmentation=scheduler.fragmentation,
            steps=scheduler.steps,
            tokens=scheduler.tokens,
            prompt_tokens=scheduler.prompt_tokens,
            cached_prompt_tokens=scheduler.cached_prompt_tokens,
            preemptions=scheduler.preemptions,
            starvations=scheduler.starvations,
            swap_s=self._executor.swap_s,
            queue_p99_s=meter.queue_p99_s(),
            batch_mean=meter.mean_batch_size(),
            step_p50_s=step_p50_s,
            step_p99_s=step_p99_s,
            drafted=scheduler.drafted,
            accepted=scheduler.accepted,
            histograms=meter.histograms(),
            histogram_sums=meter.histogram_sums(),
            is_cheaper=self.is_cheaper,
        )

    # before a step

    def _guess(self) -> None:
        """Offer what the sequences may say next; the scheduler leaves out what costs too much."""
        for generation in self._generations.values():
            sequence, ahead = generation.sequence, generation.look_ahead
            if ahead is None or generation.first_token_at is None:
                continue
            can_use = sequence.state is SequenceState.RUNNING and sequence.num_to_compute == 1
            sequence.drafts = list(ahead.guess(sequence.num_left - 1)) if can_use else []

    # after a step

    def _commit(self, plan: StepPlan, choices: dict[int, list[int]]) -> list[Growth]:
        now = self._clock()
        added: dict[int, _Chosen] = {}
        for item in plan.items:
            generation = self._generations[item.sequence.key]
            if generation.started_at is None:
                self._meter.note_start(generation, plan.planned_at)
            generation.is_cheaper |= self.is_cheaper
            if item.samples:
                added[generation.key] = self._accept(generation, item, choices[generation.key])
        self._scheduler.commit(plan, {key: chosen.tokens for key, chosen in added.items()}, now)
        self._executor.settle(plan)
        self.num_steps += 1
        self._meter.note_step(now - plan.planned_at, len(plan.items))
        return [self._grow(self._generations[key], chosen, now) for key, chosen in added.items()]

    def _accept(self, generation: Generation, item: PlannedItem, choices: list[int]) -> _Chosen:
        """Keep right guesses and the token after them, up to where the sequence ends."""
        guesses = item.token_ids[len(item.token_ids) - item.num_drafts :]
        right = count_right(guesses, choices)
        if generation.look_ahead is not None:
            generation.look_ahead.note_result(len(guesses), right)
        tokens = choices[: right + 1]
        if not generation.sampling.ignore_eos:
            for i, token in enumerate(tokens):
                if token in self._end_ids:
                    return _Chosen(tokens[: i + 1], "stop")
        return _Chosen(tokens, "length" if len(tokens) >= generation.sequence.num_left else "")

    def _grow(self, generation: Generation, chosen: _Chosen, now: float) -> Growth:
        """The scheduler knows the tokens; now everybody else."""
        self._meter.note_tokens(generation, len(chosen.tokens), now)
        if generation.look_ahead is not None:
            generation.look_ahead.extend(chosen.tokens)
        if generation.seen is not None:
            generation.seen[chosen.tokens] = True
        if chosen.reason:
            self._end(generation.key)
        return _growth(generation, chosen)

    def _end(self, key: int) -> Generation:
        generation = self._generations.pop(key)
        self._meter.note_end(generation)
        self._executor.forget(key)
        self._scheduler.finish(key)
        return generation

    def _roll_back(self, plan: StepPlan) -> None:
        self._scheduler.rollback(plan)
        self._executor.void(plan)

    def _tell(self) -> list[Growth]:
        growths, self._untold = self._untold, []
        return growths


def _num_rows(plan: StepPlan) -> int:
    return sum(len(item.token_ids) for item in plan.items)


def _growth(generation: Generation, chosen: _Chosen) -> Growth:
    return Growth(
        answer=generation.answer,
        token_ids=tuple(chosen.tokens),
        cached_tokens=generation.sequence.num_cached,
        reason=chosen.reason,
        is_cheaper=generation.is_cheaper,
    )
