from __future__ import annotations

import pytest

from gateway.stream.answers import (
    MAX_ANSWER_CHARS,
    MAX_FINISHED,
    MAX_FINISHED_CHARS,
    Answer,
    AnswerBook,
)
from gateway.wire.messages import EndOutput

pytestmark = pytest.mark.unit


def ending(prompt_id: str) -> EndOutput:
    return EndOutput(stream=1, id=prompt_id, seq=0, finish_reason="stop")


def finished(book: AnswerBook, prompt_id: str, text: str = "text", *, keep: bool = True) -> Answer:
    answer = book.begin(prompt_id)
    answer.append(text)
    book.finish(answer, ending(prompt_id), keep=keep)
    book.check_integrity()
    return answer


def test_an_answer_is_found_while_it_is_made_and_after() -> None:
    book = AnswerBook()
    answer = book.begin("a")
    answer.append("one ")
    answer.append("two")
    found = book.find("a")
    assert found is answer
    assert found.text == "one two"
    book.finish(answer, ending("a"), keep=True)
    assert book.find("a") is answer
    assert answer.ending == ending("a")


def test_an_id_begins_once() -> None:
    book = AnswerBook()
    book.begin("a")
    finished(book, "b")
    for used in ("a", "b"):
        with pytest.raises(ValueError, match=used):
            book.begin(used)


def test_an_answer_that_is_not_kept_frees_its_id() -> None:
    book = AnswerBook()
    finished(book, "a", keep=False)
    assert book.find("a") is None
    book.begin("a")


def test_the_oldest_answers_go_when_there_are_too_many() -> None:
    book = AnswerBook()
    for number in range(MAX_FINISHED + 2):
        finished(book, str(number))
    assert len(book) == MAX_FINISHED
    assert book.find("1") is None
    assert book.find("2") is not None


def test_the_oldest_answers_go_when_they_are_too_long() -> None:
    book = AnswerBook()
    finished(book, "a", "x" * (MAX_FINISHED_CHARS - 10))
    finished(book, "b", "x" * 10)
    assert book.find("a") is not None
    finished(book, "c", "x")
    assert book.find("a") is None
    assert book.find("b") is not None


def test_an_answer_that_is_too_long_keeps_no_text_and_is_not_kept() -> None:
    book = AnswerBook()
    answer = book.begin("a")
    answer.append("x" * MAX_ANSWER_CHARS)
    assert answer.is_whole
    answer.append("y")
    assert not answer.is_whole
    assert answer.text == ""
    assert book.find("a") is answer
    book.finish(answer, ending("a"), keep=True)
    assert book.find("a") is None
