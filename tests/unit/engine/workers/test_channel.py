from __future__ import annotations

import itertools

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from engine.types import Attachment, AttachmentKind
from engine.workers.channel import LENGTH, ChannelError, MessageBuffer, encode_message
from engine.workers.messages import (
    BatchRan,
    Down,
    Fault,
    Finish,
    ItemDone,
    ItemFailed,
    Ready,
    RunBatch,
    StartFailed,
    Task,
    Up,
)
from engine.workers.slab import Span

pytestmark = pytest.mark.unit

UP: list[Up] = [
    Ready(("CPUExecutionProvider",), {1: 0.01, 8: 0.05}),
    StartFailed("missing"),
    BatchRan(7, 3, 1200),
    ItemFailed(9, Fault.INTERNAL, "abc"),
    ItemDone(
        key=1 << 60,
        data=b"{}",
        attachments=(Attachment(kind=AttachmentKind.TENSORS, meta=b"{}", payload=bytes(8)),),
        began_us=1,
        prepare_us=2,
        run_us=3,
        interpret_us=4,
        batch_size=5,
    ),
]


@pytest.mark.parametrize("message", UP, ids=lambda message: type(message).__name__)
def test_messages_up_survive_the_round_trip(message: Up) -> None:
    (body,) = MessageBuffer(10_000).feed(encode_message(message, 10_000))
    assert msgspec.msgpack.decode(body, type=Up) == message


@pytest.mark.parametrize("message", [RunBatch(1, (Task(5, Span(64, 9, 3, 2, 1)),)), Finish()])
def test_messages_down_survive_the_round_trip(message: Down) -> None:
    (body,) = MessageBuffer(10_000).feed(encode_message(message, 10_000))
    assert msgspec.msgpack.decode(body, type=Down) == message


@given(cuts=st.lists(st.integers(0, 300), max_size=20))
def test_a_stream_may_be_cut_anywhere(cuts: list[int]) -> None:
    stream = b"".join(encode_message(message, 10_000) for message in UP)
    buffer = MessageBuffer(10_000)
    bodies = []
    edges = [0, *sorted(min(cut, len(stream)) for cut in cuts), len(stream)]
    for start, end in itertools.pairwise(edges):
        bodies += list(buffer.feed(stream[start:end]))
    assert [msgspec.msgpack.decode(body, type=Up) for body in bodies] == UP


def test_an_oversized_message_is_refused_before_it_is_buffered() -> None:
    buffer = MessageBuffer(100)
    with pytest.raises(ChannelError, match="over the limit of 100"):
        list(buffer.feed(LENGTH.pack(101)))


def test_an_oversized_message_is_not_encoded() -> None:
    with pytest.raises(ChannelError, match="over the limit"):
        encode_message(StartFailed("x" * 200), 100)
