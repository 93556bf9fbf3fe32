"""The second stage: takes prompts in, runs step after step, passes the news on."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from dataclasses import dataclass
from queue import Empty, Queue

from engine.errors import InternalError, InvalidInput, Overloaded
from engine.llm.generation import Generation
from engine.llm.messages import Gauges, Refused, ReleaseTable, UseCheaper
from engine.llm.runner import Runner
from engine.llm.worker.answering import Answering, StepNews

logger = logging.getLogger(__name__)

GAUGES_INTERVAL_S = 0.25
IDLE_WAIT_S = 0.05  # at most, before it looks at deadlines and gauges again
FULL_WAIT_S = 0.01  # for the next stage, before it looks for cancels again


class StepFailed(Exception):
    """A step raised; who ever ran was answered with an error, who only waited is lost with the
    worker, for the client's side to send again. ``__cause__`` is what it raised."""


@dataclass(frozen=True, slots=True)
class Cancel:
    """Forget this key: the caller left, or its text has ended."""

    key: int


class Finish:
    """Answer what is here, then return from ``run``."""


Inbound = Generation | Cancel | ReleaseTable | UseCheaper | Finish


class Stepping:
    """Runs a :class:`Runner` on the thread that calls ``run``; others talk to it through ``put``.

    ``put`` waits while ``capacity`` messages are unread, which happens only when a step hangs.
    While the next stage is full no step is run, but cancels are heeded.

    Args:
        has_more: whether the stage before this one has yet to deliver something.
        tell_gauges: called a few times a second; must not wait.
    """

    def __init__(
        self,
        runner: Runner,
        answering: Answering,
        *,
        has_more: Callable[[], bool],
        tell_gauges: Callable[[Gauges], None],
        capacity: int,
    ) -> None:
        self._runner = runner
        self._answering = answering
        self._has_more = has_more
        self._tell_gauges = tell_gauges
        self._inbox: Queue[Inbound] = Queue(capacity)
        self._refusals: list[Refused] = []
        self._is_finishing = False
        self._gauges_due_at = 0.0

    def put(self, message: Inbound) -> None:
        self._inbox.put(message)

    def run(self) -> None:
        """Step until ``Finish`` was put and everything is answered and sent.

        Raises:
            StepFailed: all that ever ran was answered with an error and sent.
        """
        while not self._is_done():
            steps_before = self._runner.num_steps
            try:
                growths = self._runner.step()
            except Exception as error:
                self._fail_all(error)
                raise StepFailed from error
            self._pass_on(StepNews(self._runner.num_steps, growths, self._take_refusals()))
            self._report()
            self._read_inbox(0.0 if self._runner.num_steps > steps_before else IDLE_WAIT_S)
        self._answering.flush()

    def _is_done(self) -> bool:
        if not self._is_finishing or self._has_more():
            return False
        self._read_inbox(0.0)  # what was delivered just before the stage became empty
        return self._runner.is_idle and not self._refusals

    def _read_inbox(self, wait_s: float) -> None:
        """Heed all that is there, waiting up to ``wait_s`` for the first message."""
        try:
            message = self._inbox.get(timeout=wait_s) if wait_s > 0.0 else self._inbox.get_nowait()
            while True:
                self._heed(message)
                message = self._inbox.get_nowait()
        except Empty:
            pass

    def _heed(self, message: Inbound) -> None:
        match message:
            case Generation():
                self._submit(message)
            case Cancel(key=key):
                self._runner.cancel(key)
            case ReleaseTable(releases=releases):
                self._runner.note_releases(releases)
            case UseCheaper(is_on=is_on):
                self._use_cheaper(is_on)
            case Finish():
                self._is_finishing = True

    def _use_cheaper(self, is_on: bool) -> None:
        if is_on is not self._runner.is_cheaper:
            self._runner.use_cheaper(is_on)
            logger.info("steps run with the %s weights", "cheaper" if is_on else "usual")

    def _submit(self, generation: Generation) -> None:
        try:
            self._runner.submit(generation)
        except (InvalidInput, Overloaded) as error:
            self._refusals.append(Refused(generation.key, error.code, error.detail))

    def _take_refusals(self) -> list[Refused]:
        refusals, self._refusals = self._refusals, []
        return refusals

    def _pass_on(self, news: StepNews) -> None:
        """Wait for room: a host that does not read gets no more tokens, not a longer queue."""
        if not news.growths and not news.refusals:
            return
        while not self._answering.try_put(news, FULL_WAIT_S):
            self._read_inbox(0.0)
            self._report()

    def _fail_all(self, error: Exception) -> None:
        reference = InternalError().reference
        logger.critical("a step failed, reference %s", reference, exc_info=error)
        growths = self._runner.fail_all(reference)
        self._pass_on(StepNews(self._runner.num_steps, growths, self._take_refusals()))
        self._answering.flush()

    def _report(self) -> None:
        now = time.monotonic()
        if now >= self._gauges_due_at:
            self._gauges_due_at = now + GAUGES_INTERVAL_S
            self._tell_gauges(self._runner.gauges())
