"""An engine that costs next to nothing, so that what is measured is the gateway around it.

Prompts get a token every ``1 / rate_hz`` seconds on an absolute schedule, each with a phase of its
own, as from many engines at once; frames are answered at once, with ``result_bytes`` of data.
"""

from __future__ import annotations

import asyncio
from bisect import insort
from collections import Counter, deque
from dataclasses import dataclass
from operator import attrgetter

import msgspec

from engine.base import EngineStatistics, ModelStatistics
from engine.errors import Unavailable, UnknownModel
from engine.llm.request import FinishedAnswer, PromptPayload, Usage
from engine.types import (
    Cancelled,
    Dropped,
    DropReason,
    Emit,
    Item,
    LaneSpec,
    Outcome,
    Progress,
    Result,
)

TOKENS, FRAMES = "steady-text", "steady-frames"
TEXT = " token"
DEFAULT_MAX_TOKENS = 600
TICK_S = 0.001
_GOLDEN = 0.618034  # spreads the phases evenly, however many prompts there are


@dataclass(slots=True, eq=False)
class _Answer:
    """A prompt under way."""

    lane: SteadyLane
    item_id: int
    num_left: int
    num_told: int
    next_at: float


class SteadyEngine:
    """Belongs to one loop. What is unanswered is bounded by the clients' prompts and credit."""

    def __init__(self, *, rate_hz: float = 20.0, result_bytes: int = 50_000) -> None:
        self._gap_s = 1.0 / rate_hz
        self._result = b'{"padding":"' + b"x" * max(0, result_bytes - 200) + b'"}'
        self._lanes: set[SteadyLane] = set()
        self._num_lanes: Counter[str] = Counter()
        self._due: deque[_Answer] = deque()  # by ``next_at``: every gap is as long as any other
        self._num_prompts = 0
        self._timer: asyncio.TimerHandle | None = None
        self._is_closed = False

    async def start(self) -> None:
        """Nothing to warm up."""

    def open_lane(self, spec: LaneSpec, emit: Emit) -> SteadyLane:
        if self._is_closed:
            raise Unavailable("the engine is closing")
        if spec.model not in (TOKENS, FRAMES):
            raise UnknownModel(f"no model {spec.model!r}")
        lane = SteadyLane(self, spec, emit)
        self._lanes.add(lane)
        self._num_lanes[spec.model] += 1
        return lane

    def statistics(self) -> EngineStatistics:
        return EngineStatistics(models=tuple(map(self._statistics, (TOKENS, FRAMES))))

    async def aclose(self, deadline: float) -> None:
        self._is_closed = True
        for lane in tuple(self._lanes):
            for item_id in tuple(lane.answers):
                lane.answer(item_id, Dropped(DropReason.SHUTDOWN))

    def forget(self, lane: SteadyLane) -> None:
        if lane in self._lanes:
            self._lanes.remove(lane)
            self._num_lanes[lane.spec.model] -= 1

    def begin(self, lane: SteadyLane, item: Item) -> None:
        """Schedule a prompt's tokens."""
        prompt = msgspec.json.decode(item.payload, type=PromptPayload)
        max_tokens = prompt.sampling.max_tokens or DEFAULT_MAX_TOKENS
        self._num_prompts += 1
        phase_s = self._gap_s * (self._num_prompts * _GOLDEN % 1.0)
        next_at = asyncio.get_running_loop().time() + phase_s
        answer = _Answer(lane, item.id, max_tokens, 0, next_at)
        lane.answers[item.id] = answer
        insort(self._due, answer, key=attrgetter("next_at"))
        self._arm()

    def finish_frame(self, lane: SteadyLane, item: Item) -> None:
        """Answer a frame in the loop's next turn."""
        result = Result(data=self._result, model=FRAMES, version="1")
        asyncio.get_running_loop().call_soon(lane.answer, item.id, result)

    def _arm(self) -> None:
        if self._timer is not None:
            return  # a new answer waits for the tick that is due
        if self._due:
            loop = asyncio.get_running_loop()
            # uvloop counts in milliseconds: for a shorter wait it would call again and again.
            wait_s = max(TICK_S, self._due[0].next_at - loop.time())
            self._timer = loop.call_later(wait_s, self._step)

    def _step(self) -> None:
        now, due = asyncio.get_running_loop().time(), self._due
        while due and due[0].next_at <= now:
            answer = due.popleft()
            if self._tell(answer):
                answer.next_at += self._gap_s
                due.append(answer)
        self._timer = None
        self._arm()

    def _statistics(self, model: str) -> ModelStatistics:
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
            lanes=self._num_lanes[model],
            queued=0,
            in_flight=0,
            accepted=0,
            results=0,
        )

    def _tell(self, answer: _Answer) -> bool:
        """Emit the next token; False when the answer is over."""
        lane = answer.lane
        if lane.answers.get(answer.item_id) is not answer:
            return False
        answer.num_left -= 1
        answer.num_told += 1
        lane.emit(answer.item_id, Progress(TEXT))
        if answer.num_left > 0:
            return True
        lane.answer(answer.item_id, _finished(answer.num_told))
        return False


class SteadyLane:
    """One stream's items; ``answers`` holds what is unanswered."""

    def __init__(self, engine: SteadyEngine, spec: LaneSpec, emit: Emit) -> None:
        self.spec = spec
        self.emit = emit
        self.answers: dict[int, _Answer | None] = {}
        self._engine = engine

    def offer(self, item: Item) -> None:
        if self.spec.model == TOKENS:
            self._engine.begin(self, item)
        else:
            self.answers[item.id] = None
            self._engine.finish_frame(self, item)

    def cancel(self, item_id: int) -> None:
        self.answer(item_id, Cancelled())

    def close(self) -> None:
        for item_id in tuple(self.answers):
            self.cancel(item_id)
        self._engine.forget(self)

    def note_release(self, item_id: int, released: int, tokens_per_s: float) -> None:
        """The schedule is fixed."""

    def answer(self, item_id: int, outcome: Outcome) -> None:
        """Emit the outcome, unless there was one."""
        if item_id in self.answers:
            del self.answers[item_id]
            self.emit(item_id, outcome)


def _finished(num_tokens: int) -> Result:
    usage = Usage(prompt_tokens=1, completion_tokens=num_tokens, total_tokens=1 + num_tokens)
    data = msgspec.json.encode(FinishedAnswer(finish_reason="length", usage=usage))
    return Result(data=data, model=TOKENS, version="1")
