"""WebSocket frames are looked at before anything assembles them: masks and numbers."""

from __future__ import annotations

import struct

import pytest

from gateway.errors import CloseCode, ProblemKind
from gateway.net.frame_guard import FrameGuard

pytestmark = pytest.mark.unit


class Parser:
    """Takes what the guard lets through."""

    def __init__(self) -> None:
        self.data = b""
        self.num_ends = 0

    def feed_data(self, data: bytes) -> tuple[bool, bytes]:
        self.data += data
        return False, b""

    def feed_eof(self) -> None:
        self.num_ends += 1


class Rig:
    def __init__(self, frames_per_s: float = 100.0) -> None:
        self.now = 0.0
        self.parser = Parser()
        self.guard = FrameGuard(self.parser, max_frames_per_s=frames_per_s, now=lambda: self.now)


def frame(length: int, *, masked: bool = True, opcode: int = 2, final: bool = True) -> bytes:
    mask = 0x80 if masked else 0
    head = bytes([(0x80 if final else 0) | opcode])
    if length < 126:
        head += bytes([mask | length])
    elif length < 65536:
        head += bytes([mask | 126]) + struct.pack("!H", length)
    else:
        head += bytes([mask | 127]) + struct.pack("!Q", length)
    return head + (b"mask" if masked else b"") + b"\x00" * length


LENGTHS = (0, 1, 125, 126, 127, 65535, 65536, 131_104)


@pytest.mark.parametrize("step", [1, 3, 7, 1000, 10**6])
def test_masked_frames_of_every_length_pass_however_they_are_cut(step: int) -> None:
    rig = Rig()
    data = b"".join(frame(length) for length in LENGTHS)
    for start in range(0, len(data), step):
        assert rig.guard.feed_data(data[start : start + step]) == (False, b"")
    assert rig.guard.fault is None
    assert rig.parser.data == data


@pytest.mark.parametrize("step", [1, 5, 10**6])
@pytest.mark.parametrize("length", LENGTHS)
def test_unmasked_frame_ends_the_connection_wherever_it_comes(step: int, length: int) -> None:
    rig = Rig()
    data = frame(200) + frame(length, masked=False) + frame(3)
    for start in range(0, len(data), step):
        rig.guard.feed_data(data[start : start + step])
    assert rig.guard.fault is not None
    assert rig.guard.fault.code is CloseCode.PROTOCOL_ERROR
    assert rig.parser.num_ends == 1
    assert len(rig.parser.data) <= len(frame(200)) + 10


def test_frames_are_limited_below_the_level_of_messages() -> None:
    rig = Rig(frames_per_s=50)
    rig.guard.feed_data(frame(0, final=False) + frame(0, opcode=0, final=False) * 49)
    assert rig.guard.fault is None
    rig.guard.feed_data(frame(0, opcode=0, final=False))
    assert rig.guard.fault is not None
    assert rig.guard.fault.code is CloseCode.QUOTA
    assert rig.guard.fault.kind is ProblemKind.LIMIT_EXCEEDED


def test_time_brings_new_frames() -> None:
    rig = Rig(frames_per_s=50)
    for _ in range(10):
        rig.guard.feed_data(frame(4) * 50)
        rig.now += 1.0
    assert rig.guard.fault is None


def test_nothing_reaches_the_parser_after_a_fault() -> None:
    rig = Rig()
    rig.guard.feed_data(frame(0, masked=False))
    rig.guard.feed_data(frame(9))
    rig.guard.feed_eof()
    assert rig.parser.data == b""


def test_a_frame_that_announces_more_than_will_ever_come_is_the_parsers_to_refuse() -> None:
    rig = Rig()
    data = b"\x82\xff" + struct.pack("!Q", 2**63) + b"mask"
    rig.guard.feed_data(data)
    assert rig.parser.data == data
    assert rig.guard.fault is None
