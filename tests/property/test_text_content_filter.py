"""The content filter gives the same text for every chunking, and holds back a bounded part."""

from __future__ import annotations

import pytest
import regex
from hypothesis import given
from hypothesis import strategies as st

from engine.llm.text.content_filter import REDACTION, ContentFilter, FilterAction

pytestmark = pytest.mark.property

MAX_MATCH = 6
LETTERS = "ab1 -"
PATTERNS = [
    "aba", "ab+", "ab|abba", "abba|ab", "a.*b", "a.*?b", r"\bab\b", r"\d{2}-\d{2}", r"\d+", "^a",
    "b$", r"(a)(b)\1", "a(?:.{3})?", "(?i)AB", "[^a ]{4,}", r"\s+", "(?>a+)b", "a{2,3}+", "(a|b)*1",
    r"\w+-", r"a\b", "[[a]b", r"\(\?=",
]  # fmt: skip

chunk_lists = st.lists(st.text(alphabet=LETTERS, max_size=12), max_size=12)
pattern_lists = st.lists(st.sampled_from(PATTERNS), min_size=1, max_size=3, unique=True)


def redact_at_once(text: str, patterns: list[str]) -> str:
    compiled = [regex.compile(pattern) for pattern in patterns]
    position, redacted = 0, ""
    while position < len(text):
        found = next(filter(None, (p.match(text, position, position + MAX_MATCH) for p in compiled
                                   if nonempty(p, text, position))), None)  # fmt: skip
        redacted += text[position] if found is None else REDACTION
        position = position + 1 if found is None else found.end()
    return redacted


def nonempty(pattern: regex.Pattern[str], text: str, position: int) -> bool:
    found = pattern.match(text, position, position + MAX_MATCH)
    return found is not None and found.end() > position


@given(chunk_lists, pattern_lists)
def test_any_chunking_is_redacted_as_the_whole_text(chunks: list[str], patterns: list[str]) -> None:
    stream = ContentFilter(patterns, max_match_chars=MAX_MATCH).open()
    told = "".join([stream.push(chunk) for chunk in chunks]) + stream.finish()
    assert told == redact_at_once("".join(chunks), patterns)


@given(chunk_lists, pattern_lists)
def test_an_ending_filter_ends_where_the_first_match_would_be_redacted(
    chunks: list[str], patterns: list[str]
) -> None:
    stream = ContentFilter(patterns, FilterAction.END, MAX_MATCH).open()
    told = "".join([stream.push(chunk) for chunk in chunks]) + stream.finish()
    before, redaction, _ = redact_at_once("".join(chunks), patterns).partition(REDACTION)
    assert (told, stream.has_ended) == (before, redaction != "")


@given(chunk_lists, pattern_lists)
def test_less_than_one_match_is_held_back(chunks: list[str], patterns: list[str]) -> None:
    stream = ContentFilter(patterns, FilterAction.END, MAX_MATCH).open()
    told = 0
    for index, chunk in enumerate(chunks, start=1):
        told += len(stream.push(chunk))
        if stream.has_ended:
            return
        assert sum(map(len, chunks[:index])) - told < MAX_MATCH
