"""What a caller gets to read of one sequence: its tokens as text, and one end."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

from engine.llm.messages import Finish, StepItem


class TextSource(Protocol):
    """Token ids in, readable text out; :class:`engine.llm.text.stream.TextStream`."""

    @property
    def stopped(self) -> str | None:
        """Why the answer is over before its tokens are."""

    def push(self, token_id: int) -> str: ...
    def finish(self) -> str: ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Growth:
    """What one step added to an answer; ``reason`` is that of ``Finish``, empty if it goes on.

    With the reason ``stop`` the last token is the model's end token, which is not text.
    """

    answer: Answer
    token_ids: tuple[int, ...] = ()
    cached_tokens: int = 0
    reason: str = ""
    detail: str = ""
    is_cheaper: bool = False


class Answer:
    """Turns growths into news for the caller, and ends exactly once.

    Belongs to the thread that makes text; the model's thread passes it along unread. Both may end
    it: the text at a stop string, then what the model generated meanwhile is dropped.
    """

    def __init__(self, key: int, num_prompt: int, text: TextSource) -> None:
        self.key = key
        self.has_ended = False
        self._num_prompt = num_prompt
        self._num_tokens = 0
        self._text = text

    def grow(self, growth: Growth) -> StepItem | None:
        """The news; None when the answer had ended already."""
        if self.has_ended:
            return None
        texts, reason = self._read(growth)
        self._num_tokens += len(texts)
        if not reason:
            return StepItem(self.key, tuple(texts))
        held_back = self._text.finish()
        if texts:
            texts[-1] += held_back
        elif held_back:  # it ended between two tokens, at a deadline
            texts.append(held_back)
        if self._text.stopped == "content_filter":  # what was held back may be forbidden too
            reason = "content_filter"
        return self._end(tuple(texts), growth, reason, growth.detail)

    def fail(self, reference: str) -> StepItem | None:
        """End with an error of ours, under whose ``reference`` the log has the traceback."""
        if self.has_ended:
            return None
        return self._end((), Growth(answer=self), "error", reference)

    def _read(self, growth: Growth) -> tuple[list[str], str]:
        """One text per token, up to where the text itself ends, and the reason to end if any."""
        texts: list[str] = []
        num_readable = len(growth.token_ids) - (growth.reason == "stop")
        for token_id in growth.token_ids[:num_readable]:
            texts.append(self._text.push(token_id))
            if self._text.stopped is not None:
                return texts, self._text.stopped
        texts += [""] * (len(growth.token_ids) - num_readable)
        return texts, growth.reason

    def _end(self, texts: tuple[str, ...], growth: Growth, reason: str, detail: str) -> StepItem:
        self.has_ended = True
        finish = Finish(
            reason=reason,
            prompt_tokens=self._num_prompt,
            completion_tokens=self._num_tokens,
            cached_tokens=growth.cached_tokens,
            detail=detail,
            is_cheaper=growth.is_cheaper,
        )
        return StepItem(self.key, texts, finish)
