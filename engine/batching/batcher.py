"""One model's door: its lanes, one timer, and exactly one outcome per accepted item."""

from __future__ import annotations

import asyncio
import itertools
import logging
from collections.abc import Sequence

from engine.batching.buckets import ShapeBuckets
from engine.batching.cost import CostModel
from engine.batching.counters import Counters
from engine.batching.deadlines import DeadlineHeap
from engine.batching.dispatcher import Dispatcher
from engine.batching.executor import Executor
from engine.batching.policy import BatchPolicy
from engine.config import ModelConfig
from engine.errors import Unavailable
from engine.lane import Entry
from engine.types import (
    Cancelled,
    Dropped,
    DropReason,
    Emit,
    Failed,
    Item,
    LaneSpec,
    Outcome,
    Result,
)

logger = logging.getLogger(__name__)

MIN_RETRY_AFTER_S = 1.0


class ModelBatcher:
    """Drives a :class:`BatchPolicy` and a :class:`Dispatcher`; runs on the event loop's thread.

    An accepted item is in ``_live`` until it is answered; it is queued in the policy or bound in
    the dispatcher. Implements :class:`engine.batching.executor.ExecutorEvents`.
    """

    def __init__(self, model: str, config: ModelConfig) -> None:
        self.counters = Counters()
        self._model = model
        self._cost = CostModel()
        self._buckets = ShapeBuckets(self._cost.forget)
        self._policy = BatchPolicy(
            max_batch_size=config.max_batch_size,
            window_s=config.batch_timeout_millis / 1000,
            max_queued=config.max_concurrent_requests,
            cost=self._cost,
        )
        self._live: dict[int, Entry] = {}
        self._deadlines = DeadlineHeap(self._live)
        self._dispatcher = Dispatcher(
            model, config, self._policy, self._cost, self.counters, self._live, self._answer
        )
        self._lanes: dict[int, BatcherLane] = {}
        self._lane_ids = itertools.count()
        self._keys = itertools.count()
        self._unavailable: str | None = "the model is starting"
        self._retry_at: float | None = None  # loop time; while unavailable
        self._is_closing = False
        self._is_idle = asyncio.Event()  # nothing is in flight
        self._is_idle.set()
        self._pump_handle: asyncio.Handle | None = None
        self._timer: asyncio.Handle | None = None
        self._timer_due_at = 0.0

    # --- life

    def start(self, executor: Executor) -> None:
        """Begin to serve: the executor has a ready worker."""
        self._dispatcher.start(executor)
        self.on_room()

    async def aclose(self, deadline: float) -> None:
        """Accept nothing more, finish until ``deadline`` (loop time), then drop the rest.

        Cancelling it drops the rest at once.
        """
        self._is_closing = True
        try:
            async with asyncio.timeout_at(deadline):
                await self._is_idle.wait()
        except TimeoutError:
            pass  # the budget is spent; the rest is told below
        finally:
            for entry in list(self._live.values()):
                self._answer(entry, Dropped(DropReason.SHUTDOWN))
            if self._timer is not None:
                self._timer.cancel()
                self._timer = None

    def open_lane(self, spec: LaneSpec, emit: Emit) -> BatcherLane:
        """Raises ``Unavailable`` when the batcher is closing."""
        if self._is_closing:
            raise Unavailable("the engine is closing")
        lane = BatcherLane(self, next(self._lane_ids), emit)
        self._lanes[lane.id] = lane
        self._policy.add_lane(lane.id, spec)
        return lane

    # --- for BatcherLane

    def offer(self, lane: BatcherLane, item: Item) -> None:
        self._check_acceptable(lane, item)
        now = asyncio.get_running_loop().time()
        entry = Entry(
            key=next(self._keys),
            lane_id=lane.id,
            item=item,
            offered_at=now,
            bucket=self._buckets.number(item.meta),
        )
        self._policy.note_demand(len(self._live) + 1, now)
        displaced = self._policy.offer(entry)
        self.counters.accepted += 1
        self._live[entry.key] = lane.entries[item.id] = entry
        self._deadlines.add(entry)
        self._is_idle.clear()
        self._schedule_pump()
        if displaced is not None:
            self._answer(displaced, Dropped(DropReason.SUPERSEDED))

    def cancel(self, entry: Entry) -> None:
        self._answer(entry, Cancelled())

    def close_lane(self, lane: BatcherLane) -> None:
        if lane.is_closed:
            return
        lane.is_closed = True
        for entry in list(lane.entries.values()):
            self._answer(entry, Cancelled())
        del self._lanes[lane.id]
        self._policy.remove_lane(lane.id)
        self._schedule_pump()  # the others need not wait for this lane any more

    # --- ExecutorEvents

    def on_room(self) -> None:
        if self._dispatcher.has_room:
            self._unavailable = None
            self._schedule_pump()

    def on_done(self, key: int, outcome: Result | Failed) -> None:
        self._dispatcher.take_done(key, outcome, asyncio.get_running_loop().time())
        self._schedule_pump()

    def on_lost(self, keys: Sequence[int], reason: str) -> None:
        self._dispatcher.take_lost(keys, reason, asyncio.get_running_loop().time())
        if self._unavailable is not None:
            self._fail_waiting()
        self._schedule_pump()

    def on_batch(self, size: int, run_s: float) -> None:
        self.counters.run_s += run_s
        self.counters.hops.observe_batch(size)

    def on_unavailable(self, reason: str, retry_at: float | None) -> None:
        self._unavailable, self._retry_at = reason, retry_at
        self._fail_waiting()

    # --- statistics

    @property
    def num_lanes(self) -> int:
        return len(self._lanes)

    @property
    def num_queued(self) -> int:
        """Accepted items that no worker holds."""
        return self._policy.num_queued + self._dispatcher.num_waiting

    def queue_age_s(self, now: float) -> float:
        """How long the oldest queued item has waited; a stream that replaces its frame goes on
        waiting."""
        return self._policy.queue_age_s(now)

    @property
    def num_in_flight(self) -> int:
        """Accepted and unanswered, queued ones included."""
        return len(self._live)

    @property
    def unavailable(self) -> str | None:
        """Why offers are refused; None while they are not."""
        return "the engine is closing" if self._is_closing else self._unavailable

    @property
    def predicted_run_s(self) -> float:
        """Predicted run time of a single item."""
        return self._cost.predict(1)

    def check_integrity(self) -> None:
        """Assert that every accepted item is in one place or was answered; for tests."""
        self._policy.check_integrity()
        self._dispatcher.check_integrity()
        held = sum(self._dispatcher.holds(entry) for entry in self._live.values())
        assert self.counters.accepted == self.counters.answered + len(self._live)
        assert self.num_queued + held == len(self._live)
        assert sum(len(lane.entries) for lane in self._lanes.values()) == len(self._live)
        assert self._policy.num_lanes == len(self._lanes)
        assert self._is_idle.is_set() == (not self._live)

    # --- the pump: expire, dispatch, set the one timer

    def _schedule_pump(self) -> None:
        """Later in this turn of the loop, so that items that arrive together go together."""
        if self._pump_handle is None:
            self._pump_handle = asyncio.get_running_loop().call_soon(self._on_turn)

    def _on_turn(self) -> None:
        self._pump_handle = None
        self._pump(asyncio.get_running_loop().time())

    def _on_timer(self, due_at: float) -> None:
        # uvloop rounds to milliseconds and may fire up to half of one early. What was due at
        # ``due_at`` is due now, else the timer would spin until the clock gets there.
        self._timer = None
        self._pump(max(due_at, asyncio.get_running_loop().time()))

    def _pump(self, now: float) -> None:
        while (key := self._deadlines.pop_due(now)) is not None:
            self._answer(self._live[key], Dropped(DropReason.DEADLINE))
        overdue_at = self._dispatcher.fail_overdue(now)
        closes_at = self._dispatcher.dispatch(now) if self._unavailable is None else None
        self._set_timer(closes_at, overdue_at, self._deadlines.nearest())

    def _set_timer(self, *times: float | None) -> None:
        """Never later than the next thing due. One that fires too early only looks again, which
        is cheaper than to move it with every item."""
        due_at = min((time for time in times if time is not None), default=None)
        if due_at is None:
            return
        if self._timer is not None:
            if self._timer_due_at <= due_at:
                return
            self._timer.cancel()
        # uvloop gives a handle without a time when the timer is due within its millisecond.
        self._timer_due_at = due_at
        self._timer = asyncio.get_running_loop().call_at(due_at, self._on_timer, due_at)

    # --- answers

    def _check_acceptable(self, lane: BatcherLane, item: Item) -> None:
        if self._is_closing or lane.is_closed:
            raise Unavailable("the engine or the lane is closed")
        if self._unavailable is not None:
            raise self._refusal()
        if item.id in lane.entries:
            raise ValueError(f"item {item.id} of this lane is not answered yet")

    def _refusal(self) -> Unavailable:
        reason = self._unavailable or "the model is not available"
        if self._retry_at is None:
            return Unavailable(reason)
        retry_after_s = self._retry_at - asyncio.get_running_loop().time()
        # The attempt must also load the model: who asks at once only hears the same again.
        return Unavailable(reason, retry_after_s=max(MIN_RETRY_AFTER_S, retry_after_s))

    def _fail_waiting(self) -> None:
        for entry in list(self._live.values()):
            if not self._dispatcher.holds(entry):
                self._answer(entry, Failed(self._refusal()))

    def _answer(self, entry: Entry, outcome: Outcome) -> None:
        """Tell the outcome, unless the item was answered before.

        The one place that emits. All books are in order before: ``emit`` may come back in.
        """
        if self._live.pop(entry.key, None) is None:
            return
        lane = self._lanes[entry.lane_id]
        del lane.entries[entry.item.id]
        self._policy.cancel(entry)
        self._dispatcher.forget(entry)
        self.counters.count(outcome)
        if not self._live:
            self._is_idle.set()
        try:
            lane.emit(entry.item.id, outcome)
        except Exception:  # one stream's fault must not reach the others
            logger.exception("%s: emit raised; the stream missed an outcome", self._model)


class BatcherLane:
    """One stream's lane; implements :class:`engine.base.Lane`.

    ``entries`` holds what is unanswered, by item id.
    """

    def __init__(self, batcher: ModelBatcher, lane_id: int, emit: Emit) -> None:
        self.id = lane_id
        self.emit = emit
        self.entries: dict[int, Entry] = {}
        self.is_closed = False
        self._batcher = batcher

    def offer(self, item: Item) -> None:
        self._batcher.offer(self, item)

    def cancel(self, item_id: int) -> None:
        entry = self.entries.get(item_id)
        if entry is not None:
            self._batcher.cancel(entry)

    def close(self) -> None:
        self._batcher.close_lane(self)
