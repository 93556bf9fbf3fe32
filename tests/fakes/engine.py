"""A small, honest engine: the boundary's contract without workers or batches.

It passes the same contract suite as the real engines (``tests/contract``), so tests of sessions
and HTTP may trust it. It shares no code with ``engine.lane`` or ``engine.batching``.
"""

from __future__ import annotations

import asyncio
from collections import Counter, deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from engine.base import EngineStatistics, ModelStatistics
from engine.errors import EngineError, Overloaded, Unavailable, UnknownModel
from engine.histogram import BATCH_SIZE_BOUNDS, HOP_BOUNDS_S, Histogram
from engine.types import (
    Cancelled,
    Dropped,
    DropReason,
    Emit,
    Failed,
    Item,
    LaneSpec,
    Outcome,
    Policy,
    Result,
)

Respond = Callable[[Item], bytes | EngineError]


def echo(item: Item) -> bytes:
    """The default answer: the payload itself."""
    return bytes(item.payload)


@dataclass(slots=True)
class _Entry:
    item: Item
    timer: asyncio.TimerHandle | None = None  # deadline
    running: bool = False


@dataclass(slots=True)
class _Counters:
    accepted: int = 0
    results: int = 0
    dropped: Counter[str] = field(default_factory=Counter)
    failed: int = 0
    cancelled: int = 0
    batches: int = 0
    run_s: Histogram = field(default_factory=lambda: Histogram(HOP_BOUNDS_S))
    sizes: Histogram = field(default_factory=lambda: Histogram(BATCH_SIZE_BOUNDS))


class FakeEngine:
    """Answers each item on its own, ``delay_s`` after it began; ``concurrency`` items at a time.

    Tests steer it with ``block``/``unblock`` (nothing is finished in between, deadlines still
    are told), ``fail_next``, ``set_unavailable`` and ``respond``. ``offered`` holds every
    accepted item, newest last.
    """

    def __init__(
        self,
        models: Sequence[str] = ("fake",),
        *,
        version: str = "1",
        delay_s: float = 0.0,
        concurrency: int = 1,
        respond: Respond = echo,
    ) -> None:
        self.delay_s = delay_s
        self.concurrency = concurrency
        self.respond = respond
        self.offered: deque[Item] = deque(maxlen=10_000)
        self._version = version
        self._counters = {model: _Counters() for model in models}
        self._lanes: dict[FakeLane, None] = {}  # ordered set
        self._planned_failures: deque[EngineError] = deque()
        self._blocked = False
        self._running = 0
        self._held: list[tuple[FakeLane, _Entry]] = []  # finished while blocked
        self._unavailable: str | None = None
        self._closed = False
        self._idle = asyncio.Event()

    async def start(self) -> None:
        """Nothing to warm up."""

    def open_lane(self, spec: LaneSpec, emit: Emit) -> FakeLane:
        if self._closed:
            raise Unavailable("the engine is closing")
        if spec.model not in self._counters or spec.version not in (None, self._version):
            raise UnknownModel(f"no model {spec.model!r} in version {spec.version!r}")
        lane = FakeLane(self, spec, emit)
        self._lanes[lane] = None
        return lane

    def statistics(self) -> EngineStatistics:
        return EngineStatistics(models=tuple(map(self._model_statistics, self._counters)))

    async def aclose(self, deadline: float) -> None:
        self._closed = True
        loop = asyncio.get_running_loop()
        self._idle.clear()
        if any(lane.entries for lane in self._lanes):
            try:
                async with asyncio.timeout_at(max(deadline, loop.time())):
                    await self._idle.wait()
            except TimeoutError:
                pass  # the rest is told below
        for lane in list(self._lanes):
            for item_id in list(lane.entries):
                self._answer(lane, item_id, Dropped(DropReason.SHUTDOWN))

    # --- steering, for tests

    def block(self) -> None:
        """From now on the model is stuck: nothing is finished."""
        self._blocked = True

    def unblock(self) -> None:
        self._blocked = False
        held, self._held = self._held, []
        for lane, entry in held:
            self._finish(lane, entry)

    def fail_next(self, *errors: EngineError) -> None:
        """The next items to finish fail with these errors, one each."""
        self._planned_failures.extend(errors)

    def set_unavailable(self, reason: str | None) -> None:
        """Open the circuit (everything unanswered fails, offers are refused) or close it."""
        self._unavailable = reason
        if reason is None:
            return
        for lane in list(self._lanes):
            for item_id in list(lane.entries):
                self._answer(lane, item_id, Failed(Unavailable(reason)))

    # --- for FakeLane

    def _offer(self, lane: FakeLane, item: Item) -> None:
        spec = lane.spec
        if self._closed or lane not in self._lanes:
            raise Unavailable("the engine or the lane is closed")
        if self._unavailable is not None:
            raise Unavailable(self._unavailable)
        if item.id in lane.entries:
            raise ValueError(f"item {item.id} is not answered yet")
        queued = [entry for entry in lane.entries.values() if not entry.running]
        displaced = queued[0] if len(queued) >= spec.capacity else None
        if displaced is not None and spec.policy is not Policy.LATEST:
            raise Overloaded(f"the lane holds {spec.capacity} items", retry_after_s=0.1)
        loop = asyncio.get_running_loop()
        entry = _Entry(item)
        lane.entries[item.id] = entry
        if item.deadline is not None:
            expired = Dropped(DropReason.DEADLINE)
            entry.timer = loop.call_at(item.deadline, self._answer, lane, item.id, expired)
        self._counters[spec.model].accepted += 1
        self.offered.append(item)
        if displaced is not None:
            self._answer(lane, displaced.item.id, Dropped(DropReason.SUPERSEDED))
        loop.call_soon(self._begin)

    def _begin(self) -> None:
        """Take queued items, one lane after the other, while there is room."""
        loop = asyncio.get_running_loop()
        while self._running < self.concurrency:
            for lane in self._lanes:
                entry = next((e for e in lane.entries.values() if not e.running), None)
                if entry is not None:
                    break
            else:
                return
            self._lanes[lane] = self._lanes.pop(lane)  # last in line for the next turn
            entry.running = True
            self._running += 1
            self._counters[lane.spec.model].batches += 1
            loop.call_later(self.delay_s, self._finish, lane, entry)

    def _finish(self, lane: FakeLane, entry: _Entry) -> None:
        if self._blocked:
            self._held.append((lane, entry))
            return
        self._running -= 1
        if lane.entries.get(entry.item.id) is entry:  # else answered meanwhile
            if self._planned_failures:
                self._answer(lane, entry.item.id, Failed(self._planned_failures.popleft()))
            else:
                self._answer(lane, entry.item.id, self._result(lane, entry.item))
        self._begin()

    def _result(self, lane: FakeLane, item: Item) -> Outcome:
        answer = self.respond(item)
        if isinstance(answer, EngineError):
            return Failed(answer)
        return Result(data=answer, model=lane.spec.model, version=self._version)

    def _answer(self, lane: FakeLane, item_id: int, outcome: Outcome) -> None:
        """The only place that emits: removes the entry, counts, tells."""
        entry = lane.entries.pop(item_id, None)
        if entry is None:
            return
        if entry.timer is not None:
            entry.timer.cancel()
        counters = self._counters[lane.spec.model]
        match outcome:
            case Result(timing=timing):
                counters.results += 1
                counters.run_s.observe(timing.run / 1e6)
                counters.sizes.observe(1)
            case Dropped(reason):
                counters.dropped[reason.value] += 1
            case Failed():
                counters.failed += 1
            case Cancelled():
                counters.cancelled += 1
        lane.emit(item_id, outcome)
        if not any(other.entries for other in self._lanes):
            self._idle.set()

    def _close_lane(self, lane: FakeLane) -> None:
        self._lanes.pop(lane, None)
        for item_id in list(lane.entries):
            self._answer(lane, item_id, Cancelled())

    def _model_statistics(self, model: str) -> ModelStatistics:
        counters = self._counters[model]
        lanes = [lane for lane in self._lanes if lane.spec.model == model]
        entries = [entry for lane in lanes for entry in lane.entries.values()]
        reason = self._unavailable or ("closed" if self._closed else "")
        return ModelStatistics(
            model=model,
            version=self._version,
            ready=not reason,
            reason=reason,
            workers_alive=0 if reason else 1,
            workers_wanted=1,
            worker_restarts=0,
            worker_rss_bytes=(),
            providers=("FakeExecutionProvider",),
            lanes=len(lanes),
            queued=sum(not entry.running for entry in entries),
            in_flight=len(entries),
            accepted=counters.accepted,
            results=counters.results,
            dropped=dict(counters.dropped),
            failed=counters.failed,
            cancelled=counters.cancelled,
            batches=counters.batches,
            hops={self._version: {"run": counters.run_s}},
            batch_sizes={self._version: counters.sizes},
        )


class FakeLane:
    """One stream's queue; ``entries`` holds what is unanswered, oldest first."""

    def __init__(self, engine: FakeEngine, spec: LaneSpec, emit: Emit) -> None:
        self.spec = spec
        self.emit = emit
        self.entries: dict[int, _Entry] = {}
        self._engine = engine

    def offer(self, item: Item) -> None:
        self._engine._offer(self, item)

    def cancel(self, item_id: int) -> None:
        self._engine._answer(self, item_id, Cancelled())

    def close(self) -> None:
        self._engine._close_lane(self)
