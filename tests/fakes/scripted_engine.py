"""An engine that answers when a test says so, at once and without a loop."""

from __future__ import annotations

from collections.abc import Iterable

from engine.base import EngineStatistics, ModelStatistics
from engine.errors import EngineError, Overloaded, Unavailable, UnknownModel
from engine.types import (
    Attachment,
    Cancelled,
    Dropped,
    DropReason,
    Emit,
    Item,
    LaneSpec,
    Outcome,
    Policy,
    Progress,
    Result,
)


def a_result(data: bytes = b'{"objects":[]}', *, attachments: Iterable[Attachment] = ()) -> Result:
    return Result(data=data, model="fake", version="1", attachments=tuple(attachments))


class ScriptedLane:
    """Unanswered items in ``items``; ``take`` moves the oldest queued one to the model."""

    def __init__(self, engine: ScriptedEngine, spec: LaneSpec, emit: Emit) -> None:
        self.spec = spec
        self.items: dict[int, Item] = {}
        self.offered: list[Item] = []
        self.is_closed = False
        self._running: set[int] = set()
        self._engine = engine
        self._emit = emit

    def offer(self, item: Item) -> None:
        if self._engine.refusal is not None:
            raise self._engine.refusal
        if self.is_closed:
            raise Unavailable("the lane is closed")
        queued = [other for other in self.items if other not in self._running]
        is_full = len(queued) >= self.spec.capacity
        if is_full and self.spec.policy is not Policy.LATEST:
            raise Overloaded("the lane is full")
        self.items[item.id] = item
        self.offered.append(item)
        if is_full:
            self.answer(queued[0], Dropped(DropReason.SUPERSEDED))

    def cancel(self, item_id: int) -> None:
        self.answer(item_id, Cancelled())

    def close(self) -> None:
        self.is_closed = True
        for item_id in tuple(self.items):
            self.answer(item_id, Cancelled())

    def take(self) -> int | None:
        """The oldest queued item begins to run."""
        for item_id in self.items:
            if item_id not in self._running:
                self._running.add(item_id)
                return item_id
        return None

    def answer(self, item_id: int, outcome: Outcome | None = None) -> None:
        """Emit the item's outcome (default: a result), unless it was answered."""
        if self.items.pop(item_id, None) is not None:
            self._running.discard(item_id)
            self._emit(item_id, a_result() if outcome is None else outcome)

    def progress(self, item_id: int, text: str) -> None:
        """Emit one token of the item, unless it was answered."""
        if item_id in self.items:
            self._emit(item_id, Progress(text))

    def emit_again(self, item_id: int, outcome: Outcome) -> None:
        """What a broken engine would do: answer what is answered."""
        self._emit(item_id, outcome)


class ScriptedEngine:
    """Lanes in the order in which they were opened; ``refusal`` is raised by every ``offer``."""

    def __init__(self, models: tuple[str, ...] = ("fake",)) -> None:
        self.lanes: list[ScriptedLane] = []
        self.refusal: EngineError | None = None
        self._models = models

    async def start(self) -> None:
        """Nothing to warm up."""

    def open_lane(self, spec: LaneSpec, emit: Emit) -> ScriptedLane:
        if spec.model not in self._models or spec.version not in (None, "1"):
            raise UnknownModel(f"no model {spec.model!r}")
        lane = ScriptedLane(self, spec, emit)
        self.lanes.append(lane)
        return lane

    def statistics(self) -> EngineStatistics:
        return EngineStatistics(models=tuple(map(_statistics, self._models)))

    async def aclose(self, deadline: float) -> None:
        for lane in self.lanes:
            lane.close()


def _statistics(model: str) -> ModelStatistics:
    return ModelStatistics(
        model=model,
        version="1",
        ready=True,
        reason="",
        workers_alive=1,
        workers_wanted=1,
        worker_restarts=0,
        worker_rss_bytes=(),
        providers=(),
        lanes=0,
        queued=0,
        in_flight=0,
        accepted=0,
        results=0,
    )
