"""Whatever an upstream server sends: the same events for every cut, and no surprise."""

from __future__ import annotations

import itertools
import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from engine.llm.upstream.reply import BadReply, Reply, ReplyError
from engine.llm.upstream.sse import SseParser

pytestmark = pytest.mark.property

pieces = st.sampled_from(
    [b"data:", b"data: ", b"data", b"\n", b"\r", b"\r\n", b"\n\n", b":", b" ", b"event: x",
     b"\xef\xbb\xbf", b"\xff", "🙂".encode(), b"[DONE]", b"{", b"a"]
)  # fmt: skip
streams = st.lists(pieces | st.binary(max_size=3), max_size=40).map(b"".join)


def parse(parts: list[bytes]) -> list[str]:
    parser = SseParser()
    return [event for part in parts for event in parser.feed(part)]


def parse_by_lines(stream: bytes) -> list[str]:
    """As the standard says it, on the whole text."""
    text = stream.removeprefix(b"\xef\xbb\xbf").replace(b"\r\n", b"\n").replace(b"\r", b"\n")
    events, data = [], []
    for line in text.split(b"\n")[:-1]:
        name, _, value = line.partition(b":")
        if not line and data:
            events.append(b"\n".join(data).decode(errors="replace"))
            data = []
        elif line and name == b"data":
            data.append(value.removeprefix(b" "))
    return events


@given(streams, st.lists(st.integers(0, 120)))
def test_any_cut_gives_the_events_of_the_whole(stream: bytes, cuts: list[int]) -> None:
    edges = [0, *sorted(cuts), len(stream)]
    parts = [stream[start:end] for start, end in itertools.pairwise(edges)]
    assert parse(parts) == parse_by_lines(stream)


@given(streams)
def test_byte_by_byte_gives_the_events_of_the_whole(stream: bytes) -> None:
    assert parse([bytes([byte]) for byte in stream]) == parse_by_lines(stream)


json_like = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=5),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(
            st.sampled_from(
                ["choices", "delta", "content", "text", "finish_reason", "usage", "error"]
            ),
            inner,
            max_size=4,
        )
    ),
    max_leaves=12,
)


@given(st.text() | json_like.map(json.dumps))
def test_any_event_is_a_chunk_or_refused(data: str) -> None:
    reply = Reply()
    try:
        assert isinstance(reply.take(data), str)
    except (BadReply, ReplyError):
        pass
    assert reply.finish().reason in ("stop", "length", "content_filter")
