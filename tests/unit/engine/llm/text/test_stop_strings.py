from __future__ import annotations

from collections.abc import Sequence

import pytest

from engine.llm.text.stop_strings import StopStrings

pytestmark = pytest.mark.unit


def run(chunks: Sequence[str], *stops: str) -> tuple[list[str], str | None]:
    stream = StopStrings(stops)
    return [*map(stream.push, chunks), stream.finish()], stream.found


def test_no_prefix_of_a_stop_leaks() -> None:
    chunks = ["The quick br", "own", " f", "ox", " jumps"]
    assert run(chunks, "own fox") == (["The quick br", "", "", "", "", ""], "own fox")


def test_held_text_comes_once_it_cannot_be_a_stop() -> None:
    assert run(["a STO", "RE"], "STOP") == (["a ", "STORE", ""], None)


def test_held_text_comes_at_the_end() -> None:
    assert run(["a ST"], "STOP") == (["a ", "ST"], None)


def test_text_that_is_no_prefix_is_never_delayed() -> None:
    assert run(list("hello"), "\n\nUser:")[0] == [*"hello", ""]


def test_a_stop_that_overlaps_itself_is_found() -> None:
    assert run(["aab", "aabaaac"], "aabaaac") == (["", "aab", ""], "aabaaac")
    assert run(["aaa", "aab"], "aab") == (["a", "aa", ""], "aab")


def test_the_stop_that_completes_first_wins_whatever_the_chunks() -> None:
    for chunks in (["xabcd"], ["xa", "bcd"], list("xabcd")):
        told, found = run(chunks, "abcd", "bc")
        assert ("".join(told), found) == ("xa", "bc")


def test_of_stops_that_complete_together_the_longest_wins() -> None:
    told, found = run(["xabc"], "bc", "abc")
    assert ("".join(told), found) == ("x", "abc")


def test_what_follows_a_stop_is_ignored() -> None:
    stream = StopStrings(["."])
    assert [stream.push("a. b"), stream.push("c. d"), stream.finish()] == ["a", "", ""]


def test_without_stops_everything_passes() -> None:
    assert run(["a", "", "b"]) == (["a", "", "b", ""], None)
