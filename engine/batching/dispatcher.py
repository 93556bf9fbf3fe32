"""What is bound to workers: hands batches over, keeps book, and runs alone what a worker lost."""

from __future__ import annotations

import logging
from collections.abc import Callable, Container, Sequence

from msgspec.structs import replace

from engine.batching.cost import CostModel
from engine.batching.counters import Counters
from engine.batching.deadlines import DeadlineHeap
from engine.batching.executor import Executor, Work
from engine.batching.flights import Flight, Flights
from engine.batching.policy import BatchPolicy
from engine.config import ModelConfig
from engine.errors import InternalError, Quarantined, Unavailable
from engine.lane import Entry
from engine.types import Dropped, DropReason, Failed, Outcome, Result

logger = logging.getLogger(__name__)

TIMER_RESOLUTION_S = 0.001  # uvloop's; to wait for less would be to spin


class Dispatcher:
    """The bound half of a :class:`ModelBatcher`, which calls it on the event loop's thread.

    Bound items are *held* by a worker, *suspects* (their worker died; they are to run alone) or
    *unplaced* (the slab had no room). The executor's size bounds all three. An item that is
    answered early stays held until its worker has let go of it: ``live`` has the keys of the
    unanswered ones. Outcomes found here are told through ``answer``.

    A retry is the same item under the same key, and it begins when its dead worker is reaped: no
    item runs in two places, and whatever answers come, one is told.
    """

    def __init__(
        self,
        model: str,
        config: ModelConfig,
        policy: BatchPolicy,
        cost: CostModel,
        counters: Counters,
        live: Container[int],
        answer: Callable[[Entry, Outcome], None],
    ) -> None:
        self._model = model
        self._max_attempts = config.max_attempts
        self._run_timeout_s = config.run_timeout_s
        self._policy = policy
        self._cost = cost
        self._counters = counters
        self._live = live
        self._answer = answer
        self._executor: Executor | None = None
        self._held: dict[int, Entry] = {}
        self._suspects: dict[int, Entry] = {}
        self._unplaced: dict[int, Entry] = {}
        self._flights = Flights()
        self._run_limits = DeadlineHeap(live)
        self._alone: set[int] = set()  # held, by a worker that has nothing else

    def start(self, executor: Executor) -> None:
        """The executor has a ready worker and has measured what batches cost."""
        self._cost.seed(executor.warmup_run_s)
        self._executor = executor

    @property
    def has_room(self) -> bool:
        """A worker can take a batch."""
        return self._executor is not None and self._executor.free_slots > 0

    @property
    def num_waiting(self) -> int:
        """Bound items that no worker holds."""
        return len(self._suspects) + len(self._unplaced)

    def holds(self, entry: Entry) -> bool:
        """A worker holds the entry, answered or not."""
        return entry.key in self._held

    def dispatch(self, now: float) -> float | None:
        """Give workers what is due; returns when to come back if nothing else happens."""
        if self._executor is None:
            return None
        self._dispatch_suspects(self._executor, now)
        # While suspects wait, other work would keep every worker busy, and none would become
        # idle for them. Once one has a worker to itself, the others go on.
        if self._suspects and not self._alone:
            return None
        return self._dispatch_batches(self._executor, now)

    def take_done(self, key: int, outcome: Result | Failed, now: float) -> None:
        """A worker answered an item."""
        entry = self._held.pop(key, None)
        self._alone.discard(key)
        flight = self._flights.land(key, now)
        if entry is not None and isinstance(outcome, Result):
            # Late answers teach most: observe them before they are discarded.
            self._observe(flight, outcome, now)
            queue_us = round((entry.bound_at - entry.offered_at) * 1e6)
            outcome = replace(outcome, timing=replace(outcome.timing, queue=queue_us))
        if entry is None or key not in self._live:
            self._counters.discarded += 1
        else:
            self._answer(entry, outcome)

    def take_lost(self, keys: Sequence[int], reason: str, now: float) -> None:
        """A worker died. Its items may have ended it: what may be tried again runs alone."""
        for key in keys:
            entry = self._held.pop(key, None)
            was_alone = key in self._alone
            self._alone.discard(key)
            self._flights.land(key, now)
            if entry is None or key not in self._live:
                self._release(key)
                continue
            entry.losses += 1
            self._suspects[key] = entry
            if entry.losses >= self._max_attempts:
                self._give_up(entry, was_alone, reason)

    def fail_overdue(self, now: float) -> float | None:
        """Answer what workers have had for too long; returns when the next item is due."""
        while (key := self._run_limits.pop_due(now)) is not None:
            entry = self._held.get(key) or self._suspects.get(key) or self._unplaced[key]
            limit_s = self._run_timeout_s
            error = Unavailable(f"the model gave no answer within run_timeout_s = {limit_s:g} s")
            self._answer(entry, Failed(error))
        return self._run_limits.nearest()

    def forget(self, entry: Entry) -> None:
        """The entry was answered: it is not to be dispatched, or run, any more."""
        self._unplaced.pop(entry.key, None)
        if entry.key in self._held and self._executor is not None:
            self._executor.withdraw(entry.key)
        if self._suspects.pop(entry.key, None) is not None:
            self._release(entry.key)

    def check_integrity(self) -> None:
        """Assert that every bound item is in one place; for tests."""
        assert self._suspects.keys().isdisjoint(self._held)
        assert self._unplaced.keys().isdisjoint(self._held)
        assert self._alone <= self._held.keys()
        assert len(self._flights) == len(self._held)
        assert all(key in self._live for key in [*self._suspects, *self._unplaced])

    def _dispatch_suspects(self, executor: Executor, now: float) -> None:
        while self._suspects and executor.idle_workers > 0:
            entry = next(iter(self._suspects.values()))
            self._hand_over(executor, [entry], now, alone=True)
            if self._unplaced.pop(entry.key, None) is not None:
                return  # not taken: it stays a suspect
            self._suspects.pop(entry.key, None)
            self._counters.retried += 1

    def _dispatch_batches(self, executor: Executor, now: float) -> float | None:
        while executor.free_slots > 0:
            wait_s = self._flights.wait_s(now, is_idle=executor.idle_streams > 0)
            hold_s = 0.0 if self._unplaced else self._policy.hold_s(now, wait_s)
            if hold_s > TIMER_RESOLUTION_S:
                return now + hold_s
            batch = list(self._unplaced.values()) or self._policy.next_batch(now, wait_s)
            if batch is None:
                return self._policy.next_wakeup(now, wait_s)
            self._hand_over(executor, batch, now)
            if self._unplaced:
                # The slab is full. They were chosen fairly, so they go first when an answer has
                # made room; back in their lanes, large items would lose to small ones for ever.
                return None
        return None

    def _hand_over(
        self, executor: Executor, batch: list[Entry], now: float, *, alone: bool = False
    ) -> None:
        """Afterwards the batch's entries are held, unplaced, lost again or answered.

        While the executor has control they count as held *and* unplaced: it may report a dead
        worker from inside ``dispatch``, and whoever is told may cancel others.
        """
        for entry in batch:
            entry.bound_at = now
            self._held[entry.key] = self._unplaced[entry.key] = entry
        if alone:
            self._alone.update(entry.key for entry in batch)
        is_idle = executor.idle_streams > 0
        try:
            taken = executor.dispatch([_work(entry) for entry in batch], alone=alone)
        except Exception:  # a batch that cannot be sent must not end the batcher
            error = InternalError()
            logger.exception("%s: dispatch failed, reference %s", self._model, error.reference)
            self._let_go(batch)
            for entry in batch:
                self._answer(entry, Failed(error))
            return
        for entry in batch[:taken]:
            self._unplaced.pop(entry.key, None)
        self._note_departure(batch[:taken], is_idle, now)
        self._let_go(batch[taken:])
        self._counters.batches += taken > 0

    def _note_departure(self, taken: list[Entry], is_idle: bool, now: float) -> None:
        keys = [entry.key for entry in taken if entry.key in self._held]  # others are lost again
        if keys:
            bucket = taken[0].bucket
            run_s = self._cost.predict(len(keys), bucket)
            self._flights.depart(keys, bucket=bucket, run_s=run_s, now=now, is_idle=is_idle)
        for entry in taken:
            if entry.losses == 0:  # all attempts share one limit
                self._run_limits.watch(entry.key, now + self._run_timeout_s)

    def _give_up(self, entry: Entry, was_alone: bool, reason: str) -> None:
        logger.warning("%s: an item lost %d worker(s): %s", self._model, entry.losses, reason)
        if was_alone:
            error = Quarantined(f"processing it ended its worker, attempt {entry.losses}")
            self._answer(entry, Failed(error))
        else:  # one of its neighbours may have been at fault
            self._answer(entry, Dropped(DropReason.WORKER_LOST))

    def _observe(self, flight: Flight | None, outcome: Result, now: float) -> None:
        """Learn from a batch: its run from the first answer, its overhead from the last."""
        if flight is None:
            return
        busy_s = outcome.busy_us / 1e6
        if not flight.is_measured:
            flight.is_measured = True
            self._cost.observe_prepare(outcome.timing.prepare / 1e6)
            self._cost.observe_run(outcome.batch_size, busy_s, flight.bucket)
        if flight.num_unanswered == 0:
            self._cost.observe_overhead(now - flight.answer_by - (busy_s - flight.run_s))

    def _let_go(self, entries: list[Entry]) -> None:
        for entry in entries:
            self._held.pop(entry.key, None)
            self._alone.discard(entry.key)

    def _release(self, key: int) -> None:
        if self._executor is not None:
            self._executor.release(key)


def _work(entry: Entry) -> Work:
    item = entry.item
    return Work(key=entry.key, payload=item.payload, meta=item.meta, options=item.options)
