"""One language model's door: its lanes, and exactly one outcome per accepted prompt."""

from __future__ import annotations

import asyncio
import itertools
import logging
import time
from collections.abc import Callable

from engine.base import ModelStatistics
from engine.batching.counters import Counters
from engine.config import LlmConfig
from engine.errors import (
    EngineError,
    InternalError,
    InvalidInput,
    Overloaded,
    Quarantined,
    Unavailable,
)
from engine.llm.expiry import Expiry
from engine.llm.gauge_log import GaugeLog
from engine.llm.host import HostFactory
from engine.llm.messages import Finish, Gauges, LlmReady, Refused, Step, StepItem, UseCheaper
from engine.llm.outbound import Outbound
from engine.llm.prompts import Prompt, decode_options
from engine.manifest import Manifest
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
)

logger = logging.getLogger(__name__)

IN_FLIGHT_BYTES = 64 * 1024 * 1024  # of unanswered prompts, kept because a lost one is sent again
RETRY_AFTER_S = 1.0
FINISHED = ("stop", "length", "content_filter")
REFUSALS: dict[str, type[EngineError]] = {
    error.code: error for error in (InvalidInput, Overloaded, Unavailable)
}


class PromptDoor:
    """Runs on the event loop's thread. Implements :class:`engine.llm.host.HostEvents`.

    An accepted prompt is in ``_live`` until it is answered. Bounds: ``max_waiting`` prompts and
    ``IN_FLIGHT_BYTES`` of payload (or one prompt of the largest size), all lanes together.
    ``service_level`` is 0 without pressure; above, the worker runs with its cheaper weights.
    """

    def __init__(
        self,
        name: str,
        manifest: Manifest,
        config: LlmConfig,
        host_factory: HostFactory,
        service_level: Callable[[], int] = lambda: 0,
    ) -> None:
        self.name = name
        self.manifest = manifest
        self._config = config
        self._service_level = service_level
        self._counters = Counters()
        self._live: dict[int, Prompt] = {}
        self._live_bytes = 0
        self._expiry = Expiry(self._live, lambda p: self._answer(p, Dropped(DropReason.DEADLINE)))
        self._host = host_factory(manifest, config, self)
        self._outbound = Outbound(self._host)
        self._gauges = GaugeLog()
        self._ready: LlmReady | None = None
        self._lanes: dict[int, DoorLane] = {}
        self._lane_ids = itertools.count()
        self._keys = itertools.count()
        self._unavailable: str | None = "the model is starting"
        self._is_closing = False
        self._is_idle = asyncio.Event()
        self._is_idle.set()

    # --- life

    async def start(self) -> None:
        """Returns when the worker is warm; raises ``StartupError`` or ``Unavailable``."""
        await self._host.start()

    async def aclose(self, deadline: float) -> None:
        """Accept nothing more, finish until ``deadline`` (loop time), drop the rest, stop the
        worker. Cancelling it drops the rest at once."""
        self._is_closing = True
        try:
            async with asyncio.timeout_at(deadline):
                await self._is_idle.wait()
        except TimeoutError:
            pass  # the budget is spent; the rest is told below
        finally:
            for prompt in list(self._live.values()):
                self._answer(prompt, Dropped(DropReason.SHUTDOWN))
            self._expiry.close()
            self._outbound.close()
            await self._host.aclose(deadline)

    def open_lane(self, spec: LaneSpec, emit: Emit) -> DoorLane:
        """Raises ``Unavailable`` when closing."""
        if self._is_closing:
            raise Unavailable("the engine is closing")
        lane = DoorLane(self, next(self._lane_ids), spec, emit)
        self._lanes[lane.id] = lane
        return lane

    # --- for DoorLane

    def offer(self, lane: DoorLane, item: Item) -> None:
        self._check_open(lane, item)
        size_bytes = memoryview(item.payload).nbytes
        if size_bytes > self._config.max_prompt_bytes:
            limit = self._config.max_prompt_bytes
            raise InvalidInput(f"the prompt has {size_bytes} bytes, max_prompt_bytes is {limit}")
        options = decode_options(item.options)
        displaced = self._make_room(lane, size_bytes)
        prompt = Prompt(
            key=next(self._keys),
            lane_id=lane.id,
            item=item,
            offered_at=asyncio.get_running_loop().time(),
            spec=lane.spec,
            tenant=options.tenant,
        )
        if not self._live:
            self._host.note_busy()
            self._is_idle.clear()
        self._counters.accepted += 1
        self._live[prompt.key] = lane.prompts[item.id] = prompt
        self._live_bytes += size_bytes
        self._expiry.watch(prompt)
        self._outbound.add(prompt)
        if displaced is not None:
            self._answer(displaced, Dropped(DropReason.SUPERSEDED))

    def withdraw(self, prompt: Prompt) -> None:
        self._answer(prompt, Cancelled())

    def close_lane(self, lane: DoorLane) -> None:
        if lane.is_closed:
            return
        lane.is_closed = True
        for prompt in list(lane.prompts.values()):
            self._answer(prompt, Cancelled())
        del self._lanes[lane.id]

    def note_release(self, prompt: Prompt, released: int, tokens_per_s: float) -> None:
        self._outbound.note_release(prompt.key, released, tokens_per_s)

    # --- HostEvents

    def is_busy(self) -> bool:
        return bool(self._live)

    def on_ready(self, ready: LlmReady) -> None:
        self._ready = ready
        self._unavailable = None
        self._host.note_busy()
        self._outbound.schedule_flush()

    def on_room(self) -> None:
        self._outbound.schedule_flush()

    def on_step(self, step: Step) -> None:
        now = asyncio.get_running_loop().time()
        for news in step.items:
            prompt = self._live.get(news.key)
            if prompt is not None:  # else it was given up, and the worker is told so
                self._take_news(prompt, news, now)

    def on_refused(self, refused: Refused) -> None:
        prompt = self._live.get(refused.key)
        if prompt is None:
            return
        self._outbound.settle(refused.key)
        kind = REFUSALS.get(refused.code)
        if kind is None:
            error: EngineError = InternalError(refused.detail or None)
        elif kind.retryable:
            retry_after_s = refused.retry_after_s or self._retry_after_s()
            error = kind(refused.detail, retry_after_s=retry_after_s)
        else:
            error = kind(refused.detail)
        self._answer(prompt, Failed(error))

    def on_gauges(self, gauges: Gauges) -> None:
        self._gauges.add(gauges, time.monotonic())
        if self._config.cheaper_weights and self._host.can_send:
            is_wanted = self._service_level() > 0
            if is_wanted is not gauges.is_cheaper:  # and again until it is
                self._host.send(UseCheaper(is_wanted))

    def on_death(self) -> None:
        self._ready = None
        self._gauges.end_worker()
        if not self._host.can_recover:
            self._unavailable = self._host.statistics().reason
        loss = self._outbound.note_death()
        lost = [self._live[key] for key in loss.keys]
        verdicts = [(prompt, self._judge(prompt, loss.convicted)) for prompt in lost]
        for prompt, error in verdicts:
            if error is not None:
                self._outbound.settle(prompt.key)
                self._answer(prompt, Failed(error))
        if self._unavailable is not None:
            for prompt in list(self._live.values()):
                self._answer(prompt, Failed(self._refusal(self._unavailable)))

    # --- statistics

    def statistics(self) -> ModelStatistics:
        host, counters = self._host.statistics(), self._counters
        llm = self._gauges.statistics(self._ready, time.monotonic())
        reason = host.reason or ("the engine is closing" if self._is_closing else "")
        return ModelStatistics(
            model=self.name,
            version=self.manifest.version,
            ready=host.ready and not reason,
            reason=reason,
            workers_alive=int(host.ready),
            workers_wanted=1,
            worker_restarts=host.restarts,
            worker_rss_bytes=host.rss_bytes,
            providers=(llm.device,) if llm.device else (),
            lanes=len(self._lanes),
            queued=sum(prompt.first_token_at is None for prompt in self._live.values()),
            in_flight=len(self._live),
            accepted=counters.accepted,
            results=counters.results,
            dropped=dict(counters.dropped),
            failed=counters.failed,
            cancelled=counters.cancelled,
            batches=llm.steps,
            retried=counters.retried,
            predicted_run_s=llm.step_p50_s,
            llm=llm,
        )

    def check_integrity(self) -> None:
        """Assert that every accepted prompt is in one place or was answered; for tests."""
        live = len(self._live)
        assert self._counters.accepted == self._counters.answered + live
        assert self._outbound.num_unsent + self._outbound.num_held == live
        assert sum(len(lane.prompts) for lane in self._lanes.values()) == live
        assert sum(prompt.size_bytes for prompt in self._live.values()) == self._live_bytes
        assert self._is_idle.is_set() == (live == 0)

    # --- admission

    def _check_open(self, lane: DoorLane, item: Item) -> None:
        if self._is_closing or lane.is_closed:
            raise Unavailable("the engine or the lane is closed")
        if self._unavailable is not None:
            raise self._refusal(self._unavailable)
        if item.id in lane.prompts:
            raise ValueError(f"item {item.id} of this lane is not answered yet")

    def _make_room(self, lane: DoorLane, size_bytes: int) -> Prompt | None:
        """The prompt that gives way to the new one, if any; raises ``Overloaded``."""
        displaced = None
        if len(lane.prompts) >= lane.spec.capacity:
            if lane.spec.policy is not Policy.LATEST:
                raise self._overload(f"the stream already has {len(lane.prompts)} prompts")
            displaced = next(iter(lane.prompts.values()))
            size_bytes -= displaced.size_bytes
        elif len(self._live) >= self._config.max_waiting:
            raise self._overload(f"the model already has {len(self._live)} prompts")
        if self._live_bytes + size_bytes > max(IN_FLIGHT_BYTES, self._config.max_prompt_bytes):
            raise self._overload(f"the model already has {self._live_bytes} bytes of prompts")
        return displaced

    def _overload(self, detail: str) -> Overloaded:
        return Overloaded(detail, retry_after_s=self._retry_after_s())

    def _refusal(self, reason: str) -> Unavailable:
        return Unavailable(reason, retry_after_s=RETRY_AFTER_S)

    def _retry_after_s(self) -> float:
        """About how long prompts waited of late."""
        return max(RETRY_AFTER_S, self._gauges.queue_p99_s())

    # --- answers

    def _take_news(self, prompt: Prompt, news: StepItem, now: float) -> None:
        if news.texts and prompt.first_token_at is None:
            prompt.first_token_at = now
            self._outbound.note_first_token(prompt.key)
        lane = self._lanes[prompt.lane_id]
        for text in news.texts:
            self._emit(lane, prompt, Progress(text))
            if prompt.key not in self._live:
                return  # withdrawn from inside emit
        if news.finish is not None:
            self._outbound.settle(prompt.key)
            self._answer(prompt, self._outcome(prompt, news.finish, now))

    def _outcome(self, prompt: Prompt, finish: Finish, now: float) -> Outcome:
        if finish.reason in FINISHED:
            version = self.manifest.version
            if finish.is_cheaper:
                version = f"{version}+{self._config.cheaper_weights}"
            return prompt.result(finish, self.name, version, now)
        if finish.reason == "deadline":
            return Dropped(DropReason.DEADLINE)
        return Failed(InternalError(finish.detail or None))

    def _judge(self, prompt: Prompt, convicted: int | None) -> EngineError | None:
        """What becomes of a prompt whose worker died: the error, or None for another try.

        Tokens that reached the stream cannot be taken back: only before them is there one.
        """
        prompt.losses += 1
        if prompt.first_token_at is not None:
            return self._refusal("the model's worker was lost in the middle of the answer")
        if prompt.key == convicted:
            logger.error("%s: prompt %d is quarantined", self.name, prompt.key)
            return Quarantined(f"{prompt.losses} workers died while they held this prompt")
        self._counters.retried += 1
        self._outbound.add_suspect(prompt)
        return None

    def _answer(self, prompt: Prompt, outcome: Outcome) -> None:
        """Tell the outcome, unless the prompt was answered before.

        All books are in order before: ``emit`` may come back in.
        """
        if self._live.pop(prompt.key, None) is None:
            return
        lane = self._lanes[prompt.lane_id]
        del lane.prompts[prompt.item.id]
        self._live_bytes -= prompt.size_bytes
        self._outbound.withdraw(prompt.key)
        self._counters.count(outcome)
        if not self._live:
            self._is_idle.set()
        self._emit(lane, prompt, outcome)

    def _emit(self, lane: DoorLane, prompt: Prompt, news: Progress | Outcome) -> None:
        try:
            lane.emit(prompt.item.id, news)
        except Exception:  # one stream's fault must not reach the others
            logger.exception("%s: emit raised; the stream missed news", self.name)


class DoorLane:
    """One stream's lane; implements :class:`engine.base.TextLane`.

    Holds at most ``spec.capacity`` unanswered prompts, running ones included. A full lane refuses
    the next; with the policy ``latest`` the oldest gives way, running or not.
    """

    def __init__(self, door: PromptDoor, lane_id: int, spec: LaneSpec, emit: Emit) -> None:
        self.id = lane_id
        self.spec = spec
        self.emit = emit
        self.is_closed = False
        self.prompts: dict[int, Prompt] = {}  # unanswered, by item id, oldest first
        self._door = door

    def offer(self, item: Item) -> None:
        self._door.offer(self, item)

    def cancel(self, item_id: int) -> None:
        prompt = self.prompts.get(item_id)
        if prompt is not None:
            self._door.withdraw(prompt)

    def close(self) -> None:
        self._door.close_lane(self)

    def note_release(self, item_id: int, released: int, tokens_per_s: float) -> None:
        prompt = self.prompts.get(item_id)
        if prompt is not None:
            self._door.note_release(prompt, released, tokens_per_s)
