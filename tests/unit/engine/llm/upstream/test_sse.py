from __future__ import annotations

import pytest

from engine.llm.upstream.sse import MAX_EVENT_BYTES, EventTooLarge, SseParser

pytestmark = pytest.mark.unit


def parse(*pieces: bytes) -> list[str]:
    parser = SseParser()
    return [event for piece in pieces for event in parser.feed(piece)]


@pytest.mark.parametrize("end", [b"\n", b"\r", b"\r\n"])
def test_each_line_end_ends_a_line(end: bytes) -> None:
    assert parse(b"data: a" + end + b"data: b" + end + end + b"data: c" + end + end) == [
        "a\nb",
        "c",
    ]


def test_a_line_end_may_be_cut() -> None:
    assert parse(b"data: a\r", b"\n\r", b"\n", b"data: b\r\n", b"\r\n") == ["a", "b"]


def test_an_event_comes_with_its_blank_line_and_not_before() -> None:
    parser = SseParser()
    assert parser.feed(b"data: a\n") == []
    assert parser.feed(b"\n") == ["a"]


def test_comments_names_and_unknown_fields_are_skipped() -> None:
    assert parse(b": ping\n\nevent: x\nid: 1\nretry: 5\nfoo\ndata: a\n\nevent: y\n\n") == ["a"]


def test_one_space_after_the_colon_is_not_data() -> None:
    assert parse(b"data:a\n\ndata:  b\n\ndata\n\ndata:\n\n") == ["a", " b", "", ""]


def test_a_byte_order_mark_at_the_start_is_skipped() -> None:
    assert parse(b"\xef\xbb", b"\xbfdata: a\n\n") == ["a"]


def test_an_unfinished_event_is_none() -> None:
    assert parse(b"data: a\n\ndata: b\n") == ["a"]


def test_an_event_has_a_bound() -> None:
    with pytest.raises(EventTooLarge):
        parse(b"data: " + b"x" * (MAX_EVENT_BYTES + 1))
    with pytest.raises(EventTooLarge):
        parse(*[b"data: " + b"x" * 1000 + b"\n"] * (MAX_EVENT_BYTES // 1000 + 2))


def test_the_bound_is_on_each_event_alone() -> None:
    event = b"data: " + b"x" * (MAX_EVENT_BYTES - 100) + b"\n\n"
    assert len(parse(event, event, event)) == 3
