from __future__ import annotations

import asyncio
import itertools

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from engine.types import Attachment, AttachmentKind
from engine.workers.channel import (
    LENGTH,
    ChannelError,
    HostChannel,
    MessageBuffer,
    encode_message,
)
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
from tests.fakes.virtual_time import virtual_time

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
        busy_us=6,
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


class FakeTransport(asyncio.Transport):
    """Takes everything and sends nothing."""

    def __init__(self) -> None:
        super().__init__()
        self.written = b""
        self.is_aborted = False

    def set_write_buffer_limits(self, high: int | None = None, low: int | None = None) -> None:
        self.high = high

    def write(self, data: bytes | bytearray | memoryview) -> None:
        self.written += data

    def is_closing(self) -> bool:
        return self.is_aborted

    def abort(self) -> None:
        self.is_aborted = True


@virtual_time
async def test_the_host_is_told_when_the_socket_takes_messages_again() -> None:
    rooms: list[bool] = []
    channel = HostChannel(Up, 100, lambda _: None, lambda: rooms.append(channel.is_writable))
    assert not channel.is_writable
    channel.connection_made(FakeTransport())
    assert channel.is_writable
    channel.pause_writing()
    assert not channel.is_writable
    channel.resume_writing()
    assert rooms == [True]


@virtual_time
async def test_the_host_closes_a_channel_on_which_something_malformed_arrives() -> None:
    told: list[Up] = []
    channel = HostChannel(Up, 100, told.append, lambda: None)
    transport = FakeTransport()
    channel.connection_made(transport)
    channel.data_received(encode_message(StartFailed("missing"), 100) + LENGTH.pack(3) + b"abc")
    assert told == [StartFailed("missing")]
    assert transport.is_aborted
    channel.connection_lost(None)
    assert channel.closed.result().startswith("sent a malformed message")
