"""The third stage: tokens become text and leave for the host, one message per step."""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from queue import Full, Queue

from engine.errors import InternalError
from engine.llm.answer import Growth
from engine.llm.messages import Refused, Step, StepItem
from engine.llm.worker.outgoing import Outgoing

logger = logging.getLogger(__name__)

CAPACITY = 2  # steps: one being told, one behind it


@dataclass(frozen=True, slots=True)
class StepNews:
    """What the second stage has to say after a step, or between two."""

    step: int
    growths: Sequence[Growth] = ()
    refusals: Sequence[Refused] = ()


class Answering:
    """Holds at most ``CAPACITY`` steps; while it is full, no further step is run.

    ``try_put`` and ``flush`` are the model thread's. ``on_stopped`` is told the key of an answer
    that its text ended, so that its sequence can end too.
    """

    def __init__(self, outgoing: Outgoing, epoch: int, on_stopped: Callable[[int], None]) -> None:
        self._outgoing = outgoing
        self._epoch = epoch
        self._on_stopped = on_stopped
        self._news: Queue[StepNews] = Queue(CAPACITY)

    def try_put(self, news: StepNews, timeout_s: float) -> bool:
        """Whether there was room, or came to be within ``timeout_s``."""
        try:
            self._news.put(news, timeout=timeout_s)
        except Full:
            return False
        return True

    def flush(self) -> None:
        """Wait until everything was handed on, to the kernel."""
        self._news.join()
        self._outgoing.flush()

    def work_forever(self) -> None:
        while True:
            news = self._news.get()
            self._tell(news)
            self._news.task_done()

    def _tell(self, news: StepNews) -> None:
        for refused in news.refusals:
            self._outgoing.put(refused)
        told = [item for growth in news.growths if (item := self._grow(growth)) is not None]
        if told:
            self._outgoing.put(Step(self._epoch, news.step, tuple(told)))

    def _grow(self, growth: Growth) -> StepItem | None:
        answer = growth.answer
        try:
            item = answer.grow(growth)
        except Exception:  # one answer's fault must not end the others
            reference = InternalError().reference
            logger.exception("an answer could not be read, reference %s", reference)
            item = answer.fail(reference)
        if answer.has_ended and not growth.reason:
            self._on_stopped(answer.key)
        return item
