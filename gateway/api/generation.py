"""One prompt in the engine, and what its HTTP reader has not taken yet."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from types import TracebackType
from typing import NamedTuple, Self

from engine.base import Engine, Lane
from engine.errors import Overloaded
from engine.types import (
    Dropped,
    DropReason,
    Failed,
    Item,
    LaneSpec,
    Outcome,
    Progress,
)
from gateway.session.outflow import Outflow
from gateway.session.pacing import DELAY_JUMP, Answering, Pacing, max_ahead
from gateway.session.registry import SessionRegistry
from gateway.session.text_totals import AnswerTimer
from gateway.stream.congestion import Congestion
from gateway.stream.network_state import NetworkState
from gateway.stream.release import Departure

# The engine expires the item; this only guards the request against a fault of ours.
SAFETY_GAP_S = 1.0


class News(NamedTuple):
    """Texts in order, none of them empty; after an outcome nothing follows."""

    texts: list[str]
    outcome: Outcome | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Reading:
    """How the answer is read: at which pace, or whole when it is over; ``tenant`` shares a
    bucket of tokens with others of its key."""

    tenant: str
    pace: str
    is_whole: bool
    max_unread_chars: int


class Generation:
    """The only item of a lane of its own; leaving the ``with`` block withdraws it.

    The engine never waits for the reader. Texts leave at the pace that was asked for, as long as
    the reader takes them; others pile up, ``max_unread_chars`` at most: beyond, the answer ends
    with ``Overloaded``. Belongs to the loop's thread.
    """

    def __init__(
        self,
        engine: Engine,
        registry: SessionRegistry,
        pacing: Pacing,
        spec: LaneSpec,
        item: Item,
        reading: Reading,
    ) -> None:
        self._engine = engine
        self._registry = registry
        self._pacing = pacing
        self._spec = spec
        self._item = item
        self._reading = reading
        self._texts: list[str] = []
        self._unread_chars = 0
        self._said: Outcome | None = None  # by the engine; told once the text before it is
        self._outcome: Outcome | None = None
        self._has_news = asyncio.Event()
        self._congestion = Congestion()  # of the reader's connection
        self._ceiling = pacing.stream_ceiling()
        self._lane: Lane | None = None
        self._timer: AnswerTimer | None = None
        self._outflow: Outflow | None = None

    def __enter__(self) -> Self:
        """Offer the prompt.

        Raises:
            EngineError: there is no such model, or no room for the prompt.
        """
        self._lane = self._engine.open_lane(self._spec, self._emit)
        # Now that the model is known to exist: totals are kept for nothing else.
        totals = self._registry.text_of(self._spec.model)
        self._timer = totals.start()
        answering = Answering(
            model=self._spec.model,
            tenant=self._reading.tenant,
            pace=self._reading.pace,
            lane=self._lane,
            item_id=self._item.id,
            congestion=self._congestion,
            ceiling=self._ceiling,
        )
        self._outflow = self._pacing.start(answering, totals, self)
        try:
            self._lane.offer(self._item)
        except BaseException:
            self._outflow.drop()
            self._lane.close()
            raise
        return self

    def __exit__(
        self,
        exc_type: type[BaseException] | None,
        exc: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        assert self._lane is not None
        assert self._outflow is not None
        if self._outcome is None:
            self.end("disconnected")
        self._outflow.drop()
        self._lane.close()

    async def wait(self, within_s: float) -> bool:
        """Whether there is news, now or within that time."""
        loop = asyncio.get_running_loop()
        assert self._item.deadline is not None
        give_up_at = self._item.deadline + SAFETY_GAP_S
        try:
            async with asyncio.timeout_at(min(give_up_at, loop.time() + within_s)):
                await self._has_news.wait()
        except TimeoutError:
            if loop.time() < give_up_at:
                return False
            self._give_up(Dropped(DropReason.DEADLINE))
        return True

    def take(self) -> News:
        """What has come since the last time; what was taken then has been sent by now."""
        texts, self._texts = self._texts, []
        self._unread_chars = 0
        news = News(texts, self._outcome)
        if self._outcome is None:
            self._has_news.clear()
            if self._outflow is not None:
                self._outflow.resume()
        return news

    def note_network(self, network: NetworkState) -> None:
        """A measurement of the reader's connection."""
        num_jumps = self._congestion.num_jumps
        self._congestion.note(network, asyncio.get_running_loop().time())
        if self._ceiling is not None:
            self._ceiling.note(network)
        if self._congestion.num_jumps > num_jumps:
            self._registry.text_of(self._spec.model).triggers[DELAY_JUMP] += 1

    def end(self, reason: str) -> None:
        """Count how the answer ended."""
        if self._timer is not None:
            self._timer.end(reason)

    def _emit(self, _: int, event: Progress | Outcome) -> None:
        if self._said is not None or self._outcome is not None or self._outflow is None:
            return  # nobody listens any more
        if isinstance(event, Progress):
            if self._timer is not None:
                self._timer.token(event.text)
            self._outflow.push(event.text)
            if self._unread_chars + self._outflow.num_chars > self._reading.max_unread_chars:
                self._give_up(Failed(Overloaded("the answer is not read")))
        else:
            self._said = event
            self._outflow.finish()

    # --- as the receiver of the outflow

    def receive(self, departure: Departure) -> None:
        self._texts.append(departure.text)
        self._unread_chars += len(departure.text)
        self._has_news.set()

    def has_room(self) -> bool:
        return self._reading.is_whole or len(self._texts) < max_ahead(self._reading.pace)

    def on_drained(self) -> None:
        self._outcome = self._said
        self._has_news.set()

    def _give_up(self, outcome: Outcome) -> None:
        if self._outflow is not None:
            self._outflow.drop()
        self._outcome = outcome
        self._has_news.set()
