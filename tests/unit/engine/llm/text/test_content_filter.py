from __future__ import annotations

from collections.abc import Sequence

import pytest

from engine.llm.text.content_filter import ContentFilter, FilterAction

pytestmark = pytest.mark.unit


def run(chunks: Sequence[str], *patterns: str, max_match_chars: int = 128) -> list[str]:
    stream = ContentFilter(patterns, max_match_chars=max_match_chars).open()
    return [*map(stream.push, chunks), stream.finish()]


def test_a_phrase_across_chunks_is_redacted() -> None:
    assert run(["my pass", "wo", "rd is x"], "password") == ["my ", "", "[redacted] is x", ""]


def test_text_that_cannot_match_is_not_delayed() -> None:
    assert run(list("hello"), "password", r"\d{3}-\d{4}") == [*"hello", ""]


def test_text_is_held_only_until_it_cannot_match() -> None:
    assert run(["call 555-", "x"], r"\d{3}-\d{4}") == ["call ", "555-x", ""]


def test_a_match_that_may_grow_waits_for_its_end() -> None:
    assert run(["12", "34", "5."], r"\d+") == ["", "", "[redacted].", ""]
    assert run(["12", "34"], r"\d+") == ["", "", "[redacted]"]


def test_a_match_is_as_long_as_the_bound_allows() -> None:
    assert "".join(run(["1234567"], r"\d+", max_match_chars=3)) == "[redacted]" * 3
    assert "".join(run(["(12)", "(1234)"], r"\(\d+\)", max_match_chars=4)) == "[redacted](1234)"


def test_a_word_boundary_sees_its_neighbours() -> None:
    assert "".join(run(["a cat, a", " catalog, bob", "cat"], r"\bcat\b")) == (
        "a [redacted], a catalog, bobcat"
    )


def test_a_pattern_keeps_its_flags_and_groups_to_itself() -> None:
    assert "".join(run(["BAD Good xx"], "(?i)bad", r"(x)\1")) == "[redacted] Good [redacted]"
    assert "".join(run(["GOOD"], "(?i)bad", "good")) == "GOOD"


def test_an_answer_ends_before_the_match() -> None:
    stream = ContentFilter(["secret"], FilterAction.END).open()
    assert [stream.push("the sec"), stream.push("ret is"), stream.push("x")] == ["the ", "", ""]
    assert stream.has_ended
    assert stream.finish() == ""


def test_the_first_match_ends_the_answer_although_more_could_follow() -> None:
    stream = ContentFilter(["secret"], FilterAction.END).open()
    assert stream.push("secret.") == ""
    assert stream.has_ended


def test_a_pattern_that_takes_too_long_ends_the_answer() -> None:
    stream = ContentFilter([r"(?:a|a|a)*(?:a|a|a)*(?:a|a|a)*c"]).open()
    assert "".join(map(stream.push, ["x", "a" * 60, "b", "y"])) == "x"
    assert stream.has_ended


@pytest.mark.parametrize(
    ("pattern", "problem"),
    [
        ("(", "missing"),
        ("a*", "matches the empty text"),
        ("x|", "matches the empty text"),
        ("foo(?!bar)", "look-around"),
        ("(?<=a)b", "look-around"),
        ("x" * 1001, "at most 1000"),
    ],
)
def test_patterns_that_cannot_be_used_are_refused(pattern: str, problem: str) -> None:
    with pytest.raises(ValueError, match=problem):
        ContentFilter([pattern])


@pytest.mark.parametrize("pattern", [r"\(?=", "[(?=]", "(?P<name>x)", "(?:a)", r"[]\](?!]"])
def test_what_only_resembles_look_around_is_allowed(pattern: str) -> None:
    ContentFilter([pattern])


def test_matches_are_counted() -> None:
    stream = ContentFilter([r"\d"]).open()
    stream.push("1 2 x 3.")
    assert stream.num_matches == 3
