"""One prompt in the engine, and what its HTTP reader has not taken yet."""

from __future__ import annotations

import asyncio
from types import TracebackType
from typing import NamedTuple, Self

from engine.base import Engine, Lane, TextLane
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
from gateway.session.registry import SessionRegistry
from gateway.session.text_totals import AnswerTimer

# The engine expires the item; this only guards the request against a fault of ours.
SAFETY_GAP_S = 1.0
UNPACED_TOKENS_PER_S = 1e6  # a reader that takes tokens as fast as they come


class News(NamedTuple):
    """Texts in order, none of them empty; after an outcome nothing follows."""

    texts: list[str]
    outcome: Outcome | None


class Generation:
    """The only item of a lane of its own; leaving the ``with`` block withdraws it.

    The engine never waits for the reader: texts pile up until they are taken, at most
    ``max_unread_chars``; beyond, the answer ends with ``Overloaded``. Belongs to the loop's thread.
    """

    def __init__(
        self,
        engine: Engine,
        registry: SessionRegistry,
        spec: LaneSpec,
        item: Item,
        *,
        max_unread_chars: int,
    ) -> None:
        self._engine = engine
        self._registry = registry
        self._spec = spec
        self._item = item
        self._max_unread_chars = max_unread_chars
        self._texts: list[str] = []
        self._unread_chars = 0
        self._num_tokens = 0  # emitted, those included that made nothing visible
        self._num_taken = 0
        self._outcome: Outcome | None = None
        self._has_news = asyncio.Event()
        self._lane: Lane | None = None
        self._timer: AnswerTimer | None = None

    def __enter__(self) -> Self:
        """Offer the prompt.

        Raises:
            EngineError: there is no such model, or no room for the prompt.
        """
        self._lane = self._engine.open_lane(self._spec, self._emit)
        # Now that the model is known to exist: totals are kept for nothing else.
        self._timer = self._registry.text_of(self._spec.model).start()
        try:
            self._lane.offer(self._item)
        except BaseException:
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
        if self._outcome is None:
            self.end("disconnected")
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
            self._end(Dropped(DropReason.DEADLINE))
        return True

    def take(self) -> News:
        """What has come since the last time; what was taken then has been sent by now."""
        if self._num_taken and isinstance(self._lane, TextLane):
            # An engine that reads its tokens from elsewhere stops reading when its reader does.
            self._lane.note_release(self._item.id, self._num_taken, UNPACED_TOKENS_PER_S)
        self._num_taken = self._num_tokens
        texts, self._texts = self._texts, []
        self._unread_chars = 0
        if self._outcome is None:
            self._has_news.clear()
        return News(texts, self._outcome)

    def end(self, reason: str) -> None:
        """Count how the answer ended."""
        if self._timer is not None:
            self._timer.end(reason)

    def _emit(self, _: int, event: Progress | Outcome) -> None:
        if self._outcome is not None:
            return  # nobody listens any more
        if not isinstance(event, Progress):
            self._end(event)
            return
        self._num_tokens += 1
        if self._timer is not None:
            self._timer.token(event.text)
        if event.text:
            self._texts.append(event.text)
            self._unread_chars += len(event.text)
            self._has_news.set()
        if self._unread_chars > self._max_unread_chars:
            self._end(Failed(Overloaded("the answer is not read")))

    def _end(self, outcome: Outcome) -> None:
        self._outcome = outcome
        self._has_news.set()
