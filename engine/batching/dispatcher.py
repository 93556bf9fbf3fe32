"""What is bound to workers: hands batches over, keeps book, and runs alone what a worker lost."""

from __future__ import annotations

import logging
from collections.abc import Callable, Container, Sequence
from dataclasses import replace

from engine.batching.cost import CostModel
from engine.batching.counters import Counters
from engine.batching.executor import Executor, Work
from engine.batching.policy import BatchPolicy
from engine.errors import InternalError, Quarantined
from engine.lane import Entry
from engine.types import Failed, Outcome, Result

logger = logging.getLogger(__name__)


class Dispatcher:
    """The bound half of a :class:`ModelBatcher`, which calls it on the event loop's thread.

    Bound items are *held* by a worker, *suspects* (their worker died; they are to run alone) or
    *unplaced* (the slab had no room). The executor's size bounds all three. An item that is
    answered early stays held until its worker has let go of it: ``live`` has the keys of the
    unanswered ones. Outcomes found here are told through ``answer``.
    """

    def __init__(
        self,
        model: str,
        policy: BatchPolicy,
        cost: CostModel,
        counters: Counters,
        live: Container[int],
        answer: Callable[[Entry, Outcome], None],
    ) -> None:
        self._model = model
        self._policy = policy
        self._cost = cost
        self._counters = counters
        self._live = live
        self._answer = answer
        self._executor: Executor | None = None
        self._held: dict[int, Entry] = {}
        self._suspects: dict[int, Entry] = {}
        self._unplaced: dict[int, Entry] = {}
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
        if entry is not None and isinstance(outcome, Result):
            # Late answers teach most: observe them before they are discarded.
            self._cost.observe_answer(outcome.batch_size, now - entry.bound_at)
            queue_us = round((entry.bound_at - entry.offered_at) * 1e6)
            outcome = replace(outcome, timing=replace(outcome.timing, queue=queue_us))
        if entry is None or key not in self._live:
            self._counters.discarded += 1
        else:
            self._answer(entry, outcome)

    def take_lost(self, keys: Sequence[int], reason: str) -> None:
        """A worker died. Its items may have ended it: each gets one more try, alone."""
        for key in keys:
            entry = self._held.pop(key, None)
            self._alone.discard(key)
            if entry is None or key not in self._live:
                self._release(key)
                continue
            entry.losses += 1
            self._suspects[key] = entry
            if entry.losses > 1:
                logger.warning("%s: an item lost two workers, the last: %s", self._model, reason)
                self._answer(entry, Failed(Quarantined("processing it ended two workers")))

    def forget(self, entry: Entry) -> None:
        """The entry was answered: it is not to be dispatched any more."""
        self._unplaced.pop(entry.key, None)
        if self._suspects.pop(entry.key, None) is not None:
            self._release(entry.key)

    def check_integrity(self) -> None:
        """Assert that every bound item is in one place; for tests."""
        assert self._suspects.keys().isdisjoint(self._held)
        assert self._unplaced.keys().isdisjoint(self._held)
        assert self._alone <= self._held.keys()
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
            batch = list(self._unplaced.values()) or self._policy.next_batch(now)
            if batch is None:
                return self._policy.next_wakeup(now)
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
        self._let_go(batch[taken:])
        self._counters.batches += taken > 0

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
