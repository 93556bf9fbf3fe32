"""A chat in the terminal without its terminal: what was said, what a line means, measurements."""

from __future__ import annotations

import unicodedata
from dataclasses import dataclass
from enum import Enum

import msgspec

MAX_TURNS = 400
MAX_MESSAGES_BYTES = 60 * 1024  # of JSON; a control message has 64 KiB, with room for the rest
_KEPT_CONTROLS = "\n\t"


class Message(msgspec.Struct, frozen=True):
    """One turn, as a chat template knows it: ``role`` is system, user or assistant."""

    role: str
    content: str


class Talk:
    """The questions and answers so far, oldest first.

    Bounded twice: by ``MAX_TURNS`` in memory, and by ``MAX_MESSAGES_BYTES`` in what is sent; the
    oldest exchanges are forgotten first.
    """

    def __init__(self, system: str = "") -> None:
        self.system = system
        self._turns: list[Message] = []

    @property
    def num_exchanges(self) -> int:
        return len(self._turns) // 2

    def clear(self) -> None:
        self._turns.clear()

    def messages(self, question: str) -> list[Message]:
        """The prompt for ``question``: the system text, what fits of the talk, the question."""
        opening = [Message("system", self.system)] if self.system.strip() else []
        asked = [Message("user", question)]
        turns = list(self._turns)
        while turns and _size_bytes([*opening, *turns, *asked]) > MAX_MESSAGES_BYTES:
            del turns[:2]
        return [*opening, *turns, *asked]

    def add(self, question: str, answer: str) -> None:
        """Remember an exchange; one without an answer would only confuse the model."""
        if answer == "":
            return
        self._turns += [Message("user", question), Message("assistant", answer)]
        del self._turns[:-MAX_TURNS]


class Command(Enum):
    """What a line that starts with a slash asks for."""

    QUIT = "/quit"
    CLEAR = "/clear"
    SYSTEM = "/system"
    STATS = "/stats"
    HELP = "/help"


@dataclass(frozen=True, slots=True)
class Line:
    """One line of input. ``command`` is None for a question, which is then in ``text``; an unknown
    command is ``HELP`` with itself as the text."""

    command: Command | None
    text: str


def parse_line(line: str) -> Line:
    """Commands are whole words, so that a path such as ``/etc/hosts`` is told apart."""
    text = line.strip()
    word, _, rest = text.partition(" ")
    if not word.startswith("/") or "/" in word[1:]:
        return Line(None, text)
    try:
        return Line(Command(word), rest.strip())
    except ValueError:
        return Line(Command.HELP, word)


def printable(text: str) -> str:
    """``text`` without control characters: a model must not move the cursor or set the title."""
    return "".join(
        char for char in text if char in _KEPT_CONTROLS or unicodedata.category(char) != "Cc"
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class AnswerEnd:
    """How an answer ended; the counts are the server's, None when it was cut short."""

    finish_reason: str
    prompt_tokens: int | None = None
    completion_tokens: int | None = None


class AnswerMeter:
    """Times one answer. ``now`` is in seconds on any one monotonic clock."""

    def __init__(self, now: float) -> None:
        self._asked_at = now
        self._first_at: float | None = None
        self._last_at = now
        self._num_pieces = 0
        self._end: AnswerEnd | None = None

    def piece(self, now: float) -> None:
        """Text has come."""
        if self._first_at is None:
            self._first_at = now
        self._last_at = now
        self._num_pieces += 1

    def end(self, end: AnswerEnd) -> None:
        self._end = end

    @property
    def num_tokens(self) -> int:
        """By the server's count; before it is known, by the pieces of text."""
        counted = self._end.completion_tokens if self._end is not None else None
        return self._num_pieces if counted is None else counted

    @property
    def ttft_s(self) -> float | None:
        """From the question to the first text."""
        return None if self._first_at is None else self._first_at - self._asked_at

    @property
    def tokens_per_s(self) -> float | None:
        """Counted from the first token; None for fewer than two."""
        if self._first_at is None or self.num_tokens < 2 or self._last_at <= self._first_at:
            return None
        return (self.num_tokens - 1) / (self._last_at - self._first_at)

    def summary(self) -> str:
        """``128 tokens, first after 95 ms, 52.1 tokens/s``."""
        parts = [f"{self.num_tokens} token" + ("s" if self.num_tokens != 1 else "")]
        if self.ttft_s is not None:
            parts.append(f"first after {self.ttft_s * 1000:.0f} ms")
        if self.tokens_per_s is not None:
            parts.append(f"{self.tokens_per_s:.1f} tokens/s")
        if self._end is not None and self._end.finish_reason != "stop":
            parts.append(f"ended by: {self._end.finish_reason}")
        return ", ".join(parts)


def _size_bytes(messages: list[Message]) -> int:
    return len(msgspec.json.encode(messages))
