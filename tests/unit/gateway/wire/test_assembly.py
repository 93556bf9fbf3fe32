"""Limits, time-outs and refusals of the assembler; ``now`` is an argument."""

from __future__ import annotations

import pytest

from gateway.wire import codec
from gateway.wire.assembly import FrameAssembler, FrameTooLarge
from gateway.wire.codec import BinaryMessage, FrameFlags, FrameHeader, MessageType, ProtocolError

pytestmark = pytest.mark.unit


def piece(stream: int, seq: int, payload: bytes, *, more: bool, meta: bytes = b"") -> BinaryMessage:
    flags = FrameFlags.MORE if more else FrameFlags.NONE
    header = FrameHeader(type=MessageType.FRAME, stream=stream, seq=seq, t_us=0, flags=flags)
    return codec.decode_binary(codec.encode_binary(header, payload, meta))


def assembler(**limits: int) -> FrameAssembler:
    return FrameAssembler(**({"max_frame_bytes": 100} | limits), timeout_s=10.0)


def test_whole_message_passes_without_a_copy() -> None:
    message = piece(1, 1, b"x" * 100, more=False)
    assert assembler().push(message, 0.0) is message


def test_whole_message_beyond_the_limit_is_refused() -> None:
    with pytest.raises(FrameTooLarge) as caught:
        assembler().push(piece(1, 7, b"x" * 101, more=False), 0.0)
    assert caught.value.header.seq == 7
    assert "100 bytes" in caught.value.detail


def test_assembled_message_has_no_more_flag_and_first_meta() -> None:
    held = assembler()
    assert held.push(piece(1, 1, b"ab", more=True, meta=b"{}"), 0.0) is None
    assert held.size_bytes == 2
    whole = held.push(piece(1, 1, b"c", more=False), 1.0)
    assert whole is not None
    assert not whole.header.has_more
    assert bytes(whole.payload) == b"abc"
    assert bytes(whole.meta) == b"{}      "
    assert whole.payload.readonly
    assert held.size_bytes == 0


def test_too_large_frame_is_refused_once_and_its_rest_swallowed() -> None:
    held = assembler()
    held.push(piece(1, 1, b"x" * 60, more=True), 0.0)
    with pytest.raises(FrameTooLarge):
        held.push(piece(1, 1, b"x" * 60, more=True), 0.0)
    assert held.size_bytes == 0
    assert held.push(piece(1, 1, b"x" * 60, more=True), 0.0) is None
    assert held.push(piece(1, 1, b"x", more=False), 0.0) is None
    next_one = piece(1, 2, b"y", more=False)
    assert held.push(next_one, 0.0) is next_one


def test_last_piece_that_exceeds_the_limit_ends_the_frame() -> None:
    held = assembler()
    held.push(piece(1, 1, b"x" * 60, more=True), 0.0)
    with pytest.raises(FrameTooLarge):
        held.push(piece(1, 1, b"x" * 60, more=False), 0.0)
    assert held.push(piece(1, 2, b"y", more=False), 0.0) is not None


def test_unfinished_frames_together_are_bounded() -> None:
    held = assembler(max_total_bytes=150)
    held.push(piece(1, 1, b"x" * 90, more=True), 0.0)
    with pytest.raises(FrameTooLarge):
        held.push(piece(2, 1, b"x" * 90, more=True), 0.0)
    assert held.size_bytes == 90


def test_number_of_unfinished_frames_is_bounded() -> None:
    held = assembler(max_unfinished=2)
    held.push(piece(1, 1, b"x", more=True), 0.0)
    held.push(piece(2, 1, b"x", more=True), 0.0)
    with pytest.raises(ProtocolError):
        held.push(piece(3, 1, b"x", more=True), 0.0)


def test_other_frame_of_the_stream_before_the_last_piece_is_refused() -> None:
    held = assembler()
    held.push(piece(1, 1, b"x", more=True), 0.0)
    with pytest.raises(ProtocolError):
        held.push(piece(1, 2, b"x", more=True), 0.0)


def test_frame_expires_at_its_deadline_and_its_rest_is_swallowed() -> None:
    held = assembler()
    held.push(piece(1, 1, b"x", more=True), 5.0)
    held.push(piece(2, 1, b"x", more=True), 7.0)
    assert held.expire(14.9) == []
    assert [header.stream for header in held.expire(15.0)] == [1]
    assert held.size_bytes == 1
    assert held.expire(15.0) == []
    assert held.push(piece(1, 1, b"x", more=False), 16.0) is None
    assert held.push(piece(1, 2, b"y", more=False), 16.0) is not None


def test_forgotten_stream_leaves_nothing_behind() -> None:
    held = assembler()
    held.push(piece(1, 1, b"x" * 10, more=True), 0.0)
    held.forget(1)
    held.forget(1)
    assert held.size_bytes == 0
    assert held.push(piece(1, 2, b"y", more=False), 0.0) is not None
