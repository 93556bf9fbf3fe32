"""What a stream remembers of its answers, so that a repeated prompt gets the same one."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field

from gateway.wire.messages import EndOutput, ErrorMessage

# A character takes one to four bytes of memory.
MAX_ANSWER_CHARS = 64 * 1024
MAX_FINISHED_CHARS = 64 * 1024
MAX_FINISHED = 64


@dataclass(slots=True, kw_only=True)
class Answer:
    """One prompt's answer so far. ``ending`` is its last event, None while it is generated.

    The text is kept up to ``MAX_ANSWER_CHARS``; a longer answer cannot be told again.
    """

    id: str
    ending: EndOutput | ErrorMessage | None = None
    num_chars: int = 0
    _texts: list[str] = field(default_factory=list)

    @property
    def is_whole(self) -> bool:
        """Whether all of its text is still known."""
        return self.num_chars <= MAX_ANSWER_CHARS

    @property
    def text(self) -> str:
        """Everything so far; empty if it ``is_whole`` no more."""
        return "".join(self._texts)

    def append(self, text: str) -> None:
        self.num_chars += len(text)
        if self.num_chars <= MAX_ANSWER_CHARS:
            self._texts.append(text)
        else:
            self._texts.clear()


class AnswerBook:
    """Answers by the prompt's id: all that are under way, and of the finished ones the newest.

    At most ``MAX_FINISHED`` finished answers with ``MAX_FINISHED_CHARS`` in all are kept; the
    oldest go first. An id that is forgotten is free again. How many are under way is for the
    caller to bound.
    """

    def __init__(self) -> None:
        self._running: dict[str, Answer] = {}
        self._finished: dict[str, Answer] = {}  # oldest first
        self._finished_chars = 0

    def __len__(self) -> int:
        return len(self._running) + len(self._finished)

    def __iter__(self) -> Iterator[Answer]:
        yield from self._running.values()
        yield from self._finished.values()

    def find(self, prompt_id: str) -> Answer | None:
        return self._running.get(prompt_id) or self._finished.get(prompt_id)

    def begin(self, prompt_id: str) -> Answer:
        """A new answer is under way.

        Raises:
            ValueError: the id is in use.
        """
        if self.find(prompt_id) is not None:
            raise ValueError(f"prompt {prompt_id!r} has its answer already")
        answer = self._running[prompt_id] = Answer(id=prompt_id)
        return answer

    def finish(self, answer: Answer, ending: EndOutput | ErrorMessage, *, keep: bool) -> None:
        """The answer is over; without ``keep`` its id is free again at once."""
        del self._running[answer.id]
        answer.ending = ending
        if not keep or not answer.is_whole:
            return
        self._finished[answer.id] = answer
        self._finished_chars += answer.num_chars
        while len(self._finished) > MAX_FINISHED or self._finished_chars > MAX_FINISHED_CHARS:
            oldest = self._finished.pop(next(iter(self._finished)))
            self._finished_chars -= oldest.num_chars

    def check_integrity(self) -> None:
        """Assert the sums; tests call it after every step."""
        assert self._finished_chars == sum(a.num_chars for a in self._finished.values())
        assert self._finished_chars <= MAX_FINISHED_CHARS
        assert len(self._finished) <= MAX_FINISHED
        assert not self._running.keys() & self._finished.keys()
        assert all(answer.ending is None for answer in self._running.values())
