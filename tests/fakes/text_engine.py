"""An engine that generates text without a model: tokens at moments of the test's choosing.

It passes the same contract suite as the real engines (``tests/contract``), so tests of sessions
and HTTP may trust it. Where there is no loop, ``ScriptedEngine`` is the simpler one.
"""

from __future__ import annotations

import asyncio
from collections import Counter, deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from itertools import cycle

import msgspec

from engine.base import EngineStatistics, LlmStatistics, ModelStatistics
from engine.errors import EngineError, InvalidInput, Overloaded, Unavailable, UnknownModel
from engine.llm.request import FinishedAnswer, PromptPayload, Usage
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
    Progress,
    Result,
)

WORDS = ("The", " quick", " brown", " fox", " jumps", " over", " the", " lazy", " dog", ".")


def finished(
    reason: str = "stop", *, prompt_tokens: int = 3, completion_tokens: int = 0, model: str = "fake"
) -> Result:
    """The end of an answer."""
    usage = Usage(
        prompt_tokens=prompt_tokens,
        completion_tokens=completion_tokens,
        total_tokens=prompt_tokens + completion_tokens,
    )
    data = msgspec.json.encode(FinishedAnswer(finish_reason=reason, usage=usage))
    return Result(data=data, model=model, version="1")


@dataclass(slots=True, eq=False)
class Generation:
    """One prompt under way."""

    item: Item
    prompt: PromptPayload
    words: deque[str]
    num_tokens: int = 0
    timers: list[asyncio.TimerHandle] = field(default_factory=list)


class TextEngine:
    """Says ``words`` to every prompt, one each ``gap_s``; ``max_tokens`` and ``stop`` are obeyed.

    Several gaps are taken in turn, over and over. The last word comes together with the end, as
    from a real engine's step. Tests steer it with ``block``/``unblock``, ``fail_next`` and
    ``set_unavailable``; ``prompts`` holds every prompt accepted, newest last.
    """

    def __init__(
        self,
        models: Sequence[str] = ("fake",),
        *,
        words: Sequence[str] = WORDS,
        gap_s: float | Sequence[float] = 0.0,
    ) -> None:
        self.words = tuple(words)
        self._gaps_s = cycle(gap_s if isinstance(gap_s, Sequence) else (gap_s,))
        self.prompts: deque[PromptPayload] = deque(maxlen=1000)
        self.items: deque[Item] = deque(maxlen=1000)
        self.specs: deque[LaneSpec] = deque(maxlen=1000)
        self.llm = LlmStatistics(scheduler_queue_latency_99=0.25, batch_size_avg=2.0)
        self._outcomes: Counter[str] = Counter()
        self._dropped: Counter[str] = Counter()
        self._num_accepted = 0
        self._models = tuple(models)
        self._lanes: set[TextFakeLane] = set()
        self._failures: deque[EngineError] = deque()
        self._unavailable: str | None = None
        self._may_run = asyncio.Event()
        self._may_run.set()
        self._blocked: list[Callable[[], None]] = []
        self._is_closed = False
        self._is_idle = asyncio.Event()

    @property
    def cancelled(self) -> int:
        return self._outcomes["Cancelled"]

    @property
    def num_running(self) -> int:
        return sum(len(lane.running) for lane in self._lanes)

    @property
    def num_lanes(self) -> int:
        return len(self._lanes)

    async def start(self) -> None:
        """Nothing to warm up."""

    def open_lane(self, spec: LaneSpec, emit: Emit) -> TextFakeLane:
        if self._is_closed:
            raise Unavailable("the engine is closing")
        if spec.model not in self._models or spec.version not in (None, "1"):
            raise UnknownModel(f"no model {spec.model!r}")
        lane = TextFakeLane(self, spec, emit)
        self._lanes.add(lane)
        self.specs.append(spec)
        return lane

    def statistics(self) -> EngineStatistics:
        return EngineStatistics(models=tuple(map(self._statistics, self._models)))

    async def aclose(self, deadline: float) -> None:
        self._is_closed = True
        self._is_idle.clear()
        try:
            async with asyncio.timeout_at(deadline):
                if self.num_running:
                    await self._is_idle.wait()
        except TimeoutError:
            pass  # the rest is told below
        for lane in list(self._lanes):
            for key in list(lane.running):
                lane.answer(key, Dropped(DropReason.SHUTDOWN))

    # --- steering, for tests

    def block(self) -> None:
        """From now on no token is generated."""
        self._may_run.clear()

    def unblock(self) -> None:
        self._may_run.set()
        blocked, self._blocked = self._blocked, []
        for go_on in blocked:
            go_on()

    def fail_next(self, *errors: EngineError) -> None:
        """The next answers fail with these instead of their second word."""
        self._failures.extend(errors)

    def set_unavailable(self, reason: str | None) -> None:
        """Answer everything and refuse what comes."""
        self._unavailable = reason
        if reason is not None:
            for lane in list(self._lanes):
                for key in list(lane.running):
                    lane.answer(key, Failed(Unavailable(reason)))

    # --- for the lanes

    def accept(self, lane: TextFakeLane, item: Item) -> None:
        if self._unavailable is not None or self._is_closed or lane not in self._lanes:
            raise Unavailable(self._unavailable or "the engine or the lane is closed")
        displaced = next(iter(lane.running)) if len(lane.running) >= lane.spec.capacity else None
        if displaced is not None and lane.spec.policy is not Policy.LATEST:
            raise Overloaded("the lane is full", retry_after_s=0.5)
        self.items.append(item)
        self._num_accepted += 1
        self._begin(lane, item)
        if displaced is not None:
            lane.answer(displaced, Dropped(DropReason.SUPERSEDED))

    def count(self, outcome: Outcome) -> None:
        self._outcomes[type(outcome).__name__] += 1
        if isinstance(outcome, Dropped):
            self._dropped[outcome.reason.value] += 1
        if not self.num_running:
            self._is_idle.set()

    def _begin(self, lane: TextFakeLane, item: Item) -> None:
        loop = asyncio.get_running_loop()
        try:
            prompt = msgspec.json.decode(item.payload, type=PromptPayload)
        except msgspec.DecodeError as error:
            lane.running[item.id] = Generation(item, PromptPayload(prompt=""), deque())
            loop.call_soon(lane.answer, item.id, Failed(InvalidInput(str(error))))
            return
        self.prompts.append(prompt)
        generation = Generation(item, prompt, deque(self._text_for(prompt)))
        lane.running[item.id] = generation
        if item.deadline is not None:
            expired = Dropped(DropReason.DEADLINE)
            generation.timers.append(loop.call_at(item.deadline, lane.answer, item.id, expired))
        generation.timers.append(loop.call_later(next(self._gaps_s), self._step, lane, generation))

    def forget(self, lane: TextFakeLane) -> None:
        self._lanes.discard(lane)

    def _text_for(self, prompt: PromptPayload) -> list[str]:
        words = list(self.words)
        for stop in prompt.sampling.stop:
            before = "".join(words).partition(stop)[0]
            kept: list[str] = []
            for word in words:
                kept.append(word[: max(0, len(before) - len("".join(kept)))])
            words = [word for word in kept if word]
        return words

    def _step(self, lane: TextFakeLane, generation: Generation) -> None:
        item_id, limit = generation.item.id, generation.prompt.sampling.max_tokens
        if lane.running.get(item_id) is not generation:
            return
        if not self._may_run.is_set():
            self._blocked.append(lambda: self._step(lane, generation))
            return
        if generation.num_tokens == 1 and self._failures:
            lane.answer(item_id, Failed(self._failures.popleft()))
            return
        if generation.words:
            generation.num_tokens += 1
            lane.emit(item_id, Progress(generation.words.popleft()))
        is_cut = generation.num_tokens == limit and bool(generation.words)
        if is_cut or not generation.words:
            reason = "length" if is_cut else "stop"
            tokens = generation.num_tokens
            lane.answer(item_id, finished(reason, completion_tokens=tokens, model=lane.spec.model))
            return
        loop = asyncio.get_running_loop()
        generation.timers.append(loop.call_later(next(self._gaps_s), self._step, lane, generation))

    def _statistics(self, model: str) -> ModelStatistics:
        running = sum(len(lane.running) for lane in self._lanes if lane.spec.model == model)
        return ModelStatistics(
            model=model,
            version="1",
            ready=self._unavailable is None and not self._is_closed,
            reason=self._unavailable or "",
            workers_alive=1,
            workers_wanted=1,
            worker_restarts=0,
            worker_rss_bytes=(),
            providers=(),
            lanes=len(self._lanes),
            queued=0,
            in_flight=running,
            accepted=self._num_accepted,
            results=self._outcomes["Result"],
            dropped=dict(self._dropped),
            failed=self._outcomes["Failed"],
            cancelled=self._outcomes["Cancelled"],
            llm=self.llm,
        )


class TextFakeLane:
    """Prompts of one lane, all running at once."""

    def __init__(self, engine: TextEngine, spec: LaneSpec, emit: Emit) -> None:
        self.spec = spec
        self.emit = emit
        self.running: dict[int, Generation] = {}
        self._engine = engine

    def offer(self, item: Item) -> None:
        self._engine.accept(self, item)

    def cancel(self, item_id: int) -> None:
        self.answer(item_id, Cancelled())

    def close(self) -> None:
        for item_id in list(self.running):
            self.cancel(item_id)
        self._engine.forget(self)

    def answer(self, item_id: int, outcome: Outcome) -> None:
        """Emit the outcome, unless there was one."""
        generation = self.running.pop(item_id, None)
        if generation is not None:
            for timer in generation.timers:
                timer.cancel()
            self._engine.count(outcome)
            self.emit(item_id, outcome)
