"""State of one open stream of prompts and tokens."""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

from engine.base import Lane
from engine.types import DropReason, Outcome, Priority
from gateway.session.open_stream import OpenStream
from gateway.session.outflow import Outflow
from gateway.session.text_options import TextSettings
from gateway.session.text_totals import AnswerTimer
from gateway.stream.ack_window import EventAcks
from gateway.stream.answers import Answer, AnswerBook
from gateway.stream.event_log import EventLog
from gateway.stream.rate_ceiling import RateCeiling
from gateway.stream.release import Departure


class Teller(Protocol):
    """Tells a client of its answers."""

    def tell(self, prompt: RunningPrompt, departure: Departure) -> None:
        """Text leaves."""

    def answer(self, prompt: RunningPrompt) -> None:
        """All the text has left: what the engine said at the end follows."""


class RunningPrompt:
    """An accepted prompt whose answer has not left completely; the receiver of its outflow.

    ``key`` is its item's id in the lane; ``outcome`` what the engine said, once it has. ``outflow``
    is set before anything is asked of it. At most ``max_ahead`` events wait for the socket.
    """

    # On every token's path: see ``gateway.stream.stream_queue.StreamQueue``.
    __slots__ = (
        "_max_ahead",
        "_teller",
        "answer",
        "key",
        "lane",
        "outcome",
        "outflow",
        "stream",
        "timer",
    )

    outflow: Outflow

    def __init__(
        self,
        stream: TextStream,
        teller: Teller,
        *,
        key: int,
        answer: Answer,
        lane: Lane,
        timer: AnswerTimer,
        max_ahead: int,
    ) -> None:
        self.stream = stream
        self.key = key
        self.answer = answer
        self.lane = lane
        self.timer = timer
        self.outcome: Outcome | None = None
        self._teller = teller
        self._max_ahead = max_ahead

    def has_room(self) -> bool:
        return self.stream.has_room(self._max_ahead)

    def receive(self, departure: Departure) -> None:
        self._teller.tell(self, departure)

    def on_drained(self) -> None:
        self._teller.answer(self)


class TextStream(OpenStream[EventAcks]):
    """One stream of prompts, answered in parallel.

    ``running`` holds exactly the prompts that ``tally`` counts as in flight, by their key; how many
    there may be is bounded per connection. ``lanes`` has one for each priority that was asked for.
    ``ceiling`` is the bucket of tokens that the stream's answers share, if it has one.
    """

    # On every token's path: see ``gateway.stream.stream_queue.StreamQueue``.
    __slots__ = (
        "_has_blocked",
        "_num_events",
        "_num_prompts",
        "_untold",
        "answers",
        "ceiling",
        "lanes",
        "log",
        "num_received",
        "running",
        "settings",
    )

    def __init__(
        self,
        settings: TextSettings,
        *,
        ack_deadline_s: float,
        ceiling: RateCeiling | None,
    ) -> None:
        super().__init__(settings.id, settings.lane.model, EventAcks(ack_deadline_s))
        self.settings = settings
        self.ceiling = ceiling
        self.lanes: dict[Priority, Lane] = {}
        self.running: dict[int, RunningPrompt] = {}
        self.answers = AnswerBook()
        self.log = EventLog(settings.id)
        self.num_received = 0  # prompts, accepted or not, in the order in which they were sent
        # Receipts that are decided while nobody can be told of them; None: somebody can be.
        self._untold: list[Callable[[], None]] | None = None
        self._num_events = 0
        self._num_prompts = 0
        self._has_blocked = False  # some answer found no room

    @property
    def is_answered(self) -> bool:
        return not self.running

    @property
    def last_seq(self) -> int:
        """Of the newest event; -1 before the first."""
        return self._num_events - 1

    def take_seq(self) -> int:
        """The number of the next event: tokens, ends and errors of all prompts count as one."""
        self._num_events += 1
        return self._num_events - 1

    def add(self, prompt: RunningPrompt) -> None:
        """An accepted prompt."""
        self.running[prompt.key] = prompt
        self._share_ceiling()

    def remove(self, prompt: RunningPrompt) -> None:
        """It is answered."""
        del self.running[prompt.key]
        prompt.outflow.drop()
        self._share_ceiling()

    def _share_ceiling(self) -> None:
        if self.ceiling is not None:
            self.ceiling.num_sharing = max(1, len(self.running))

    def has_room(self, max_ahead: int) -> bool:
        """Whether fewer than ``max_ahead`` events per running answer wait for the socket; a
        connection that is lost has none to wait for."""
        num_ahead = self._num_events - 1 - self.acks.sent_seq
        if num_ahead < max_ahead * len(self.running) or self._untold is not None:
            return True
        self._has_blocked = True
        return False

    def note_sent(self, seq: int, now: float) -> None:
        """The event was written, and waits for an ``ack``."""
        self.acks.sent(seq, now)
        if self._has_blocked:
            self._resume()

    def _resume(self) -> None:
        self._has_blocked = False
        for prompt in tuple(self.running.values()):
            prompt.outflow.resume()

    def take_key(self) -> int:
        self._num_prompts += 1
        return self._num_prompts

    def find(self, prompt_id: str) -> RunningPrompt | None:
        """The prompt of that id, if its answer is under way."""
        return next((p for p in self.running.values() if p.answer.id == prompt_id), None)

    def acknowledge(self, seq: int, now: float) -> None:
        """The client has processed all events up to ``seq``."""
        # Not beyond what was told: an ack of everything would switch the watch off.
        self.acks.acknowledge(min(seq, self.last_seq), now)
        self.log.acknowledge(seq)

    def receipt(self, count: Callable[[], None]) -> None:
        """A prompt is answered: count it now or, while detached, when the client is back."""
        if self._untold is None:
            count()
        else:
            self._untold.append(count)

    def detach(self, reason: DropReason) -> None:
        """Answers go on into the log; ``attach`` or ``forget_untold`` settles their receipts."""
        self._untold = []
        self._resume()

    def attach(self, last_seq: int) -> None:
        """The client is back and has the events up to ``last_seq``; the others are told again."""
        untold, self._untold = self._untold or [], None
        for count in untold:
            count()
        self.acks.restart(last_seq)
        self.log.acknowledge(last_seq)

    def forget_untold(self, reason: DropReason) -> None:
        """The client did not come back for these answers; idempotent."""
        num_untold = len(self._untold or ())
        self._untold = None
        if num_untold:
            self.tally.count_dropped(reason, num_untold)

    def close_lanes(self) -> None:
        """Answers what is unanswered with ``Cancelled``; idempotent."""
        for lane in tuple(self.lanes.values()):
            lane.close()

    def check_integrity(self) -> None:
        """Assert the sums; tests call it after every step."""
        self.tally.check_integrity()
        self.answers.check_integrity()
        self.log.check_integrity()
        assert self.log.next_seq == self._num_events
        assert self.tally.in_flight == len(self.running) + len(self._untold or ())
        running = {answer.id for answer in self.answers if answer.ending is None}
        assert running == {prompt.answer.id for prompt in self.running.values()}
