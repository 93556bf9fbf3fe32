"""An answer's text and its one end."""

from __future__ import annotations

import pytest

from engine.llm.answer import Answer, Growth
from engine.llm.messages import Finish, StepItem

pytestmark = pytest.mark.unit

END = 0


class Letters:
    """Token n is the n-th letter. Holds back every ``h`` until the next letter; stops at ``s``,
    and, when told to finish while it holds one back, at what a filter would forbid."""

    def __init__(self, *, forbids_held: bool = False) -> None:
        self.stopped: str | None = None
        self._held = ""
        self._forbids_held = forbids_held

    def push(self, token_id: int) -> str:
        letter = chr(ord("a") + token_id - 1)
        if letter == "s":
            self.stopped = "stop"
            return ""
        text, self._held = (self._held, "h") if letter == "h" else (self._held + letter, "")
        return text

    def finish(self) -> str:
        if self._held and self._forbids_held:
            self.stopped = "content_filter"
            return ""
        return self._held


def tokens_of(text: str) -> tuple[int, ...]:
    return tuple(ord(letter) - ord("a") + 1 for letter in text)


def make_answer(*, forbids_held: bool = False) -> Answer:
    return Answer(7, 3, Letters(forbids_held=forbids_held))


def growth(answer: Answer, text: str, reason: str = "", end: bool = False) -> Growth:
    tokens = (*tokens_of(text), END) if end else tokens_of(text)
    return Growth(answer=answer, token_ids=tokens, cached_tokens=2, reason=reason)


def finish(reason: str, completion_tokens: int, detail: str = "") -> Finish:
    return Finish(
        reason=reason,
        prompt_tokens=3,
        completion_tokens=completion_tokens,
        cached_tokens=2,
        detail=detail,
    )


def test_each_token_has_its_text() -> None:
    answer = make_answer()
    assert answer.grow(growth(answer, "abhc")) == StepItem(7, ("a", "b", "", "hc"))
    assert not answer.has_ended


def test_what_was_held_back_comes_with_the_last_token() -> None:
    answer = make_answer()
    item = answer.grow(growth(answer, "ah", reason="length"))
    assert item == StepItem(7, ("a", "h"), finish("length", 2))


def test_the_end_token_counts_but_is_not_text() -> None:
    answer = make_answer()
    item = answer.grow(growth(answer, "ah", reason="stop", end=True))
    assert item == StepItem(7, ("a", "", "h"), finish("stop", 3))


def test_a_stop_inside_a_run_cuts_there() -> None:
    answer = make_answer()
    item = answer.grow(growth(answer, "asbc"))
    assert item == StepItem(7, ("a", ""), finish("stop", 2))
    assert answer.has_ended


def test_a_stop_goes_before_the_length() -> None:
    answer = make_answer()
    item = answer.grow(growth(answer, "as", reason="length"))
    assert item == StepItem(7, ("a", ""), finish("stop", 2))


def test_tokens_after_the_end_are_dropped() -> None:
    answer = make_answer()
    answer.grow(growth(answer, "s"))
    assert answer.grow(growth(answer, "ab", reason="length")) is None
    assert answer.fail("ref") is None


def test_a_deadline_lets_go_what_was_held_back() -> None:
    answer = make_answer()
    answer.grow(growth(answer, "ah"))
    item = answer.grow(growth(answer, "", reason="deadline"))
    assert item == StepItem(7, ("h",), finish("deadline", 2))


def test_a_filter_may_forbid_what_was_held_back() -> None:
    answer = make_answer(forbids_held=True)
    item = answer.grow(growth(answer, "ah", reason="length"))
    assert item == StepItem(7, ("a", ""), finish("content_filter", 2))


def test_a_failed_answer_ends_with_the_reference() -> None:
    answer = make_answer()
    item = answer.fail("ref")
    assert item is not None
    assert item.finish is not None
    assert (item.finish.reason, item.finish.detail) == ("error", "ref")
    assert answer.has_ended
