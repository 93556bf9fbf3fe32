"""State of one open stream of prompts and tokens."""

from __future__ import annotations

from dataclasses import dataclass

from engine.base import Lane
from engine.types import Priority
from gateway.session.open_stream import OpenStream
from gateway.session.text_options import TextSettings
from gateway.session.text_totals import AnswerTimer
from gateway.stream.answers import Answer, AnswerBook


@dataclass(slots=True, kw_only=True)
class RunningPrompt:
    """An accepted prompt whose answer is not finished. ``key`` is its item's id in the lane."""

    key: int
    answer: Answer
    lane: Lane
    timer: AnswerTimer


class TextStream(OpenStream):
    """One stream of prompts, answered in parallel.

    ``running`` holds exactly the prompts that ``tally`` counts as in flight, by their key; how many
    there may be is bounded per connection. ``lanes`` has one for each priority that was asked for.
    """

    def __init__(self, settings: TextSettings, *, ack_deadline_s: float) -> None:
        super().__init__(settings.id, settings.lane.model, ack_deadline_s=ack_deadline_s)
        self.settings = settings
        self.lanes: dict[Priority, Lane] = {}
        self.running: dict[int, RunningPrompt] = {}
        self.answers = AnswerBook()
        self._num_events = 0
        self._num_prompts = 0

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

    def take_key(self) -> int:
        self._num_prompts += 1
        return self._num_prompts

    def find(self, prompt_id: str) -> RunningPrompt | None:
        """The prompt of that id, if its answer is under way."""
        return next((p for p in self.running.values() if p.answer.id == prompt_id), None)

    def close_lanes(self) -> None:
        """Answers what is unanswered with ``Cancelled``; idempotent."""
        for lane in tuple(self.lanes.values()):
            lane.close()

    def check_integrity(self) -> None:
        """Assert the sums; tests call it after every step."""
        self.tally.check_integrity()
        self.answers.check_integrity()
        assert self.tally.in_flight == len(self.running)
        running = {answer.id for answer in self.answers if answer.ending is None}
        assert running == {prompt.answer.id for prompt in self.running.values()}
