"""What the kernel says, and what happens when it says less."""

from __future__ import annotations

import struct

import pytest

from gateway.net.tcp_info import parse_tcp_info, read_path, read_window

pytestmark = pytest.mark.unit


def an_answer(size: int = 232) -> bytes:
    """``struct tcp_info`` as the kernel fills it, with other fields full of ones."""
    data = bytearray(b"\xff" * 232)
    struct.pack_into("=II", data, 68, 25_000, 5_000)
    struct.pack_into("=I", data, 100, 7)
    struct.pack_into("=I", data, 156, 1_000)
    return bytes(data[:size])


def test_round_trip_and_segments_are_found() -> None:
    sample = parse_tcp_info(an_answer())
    assert sample is not None
    assert (sample.rtt_s, sample.rttvar_s) == (0.025, 0.005)
    assert (sample.num_segments, sample.num_retransmitted) == (1_000, 7)


def test_an_older_kernel_says_nothing_of_loss() -> None:
    sample = parse_tcp_info(an_answer(104))
    assert sample is not None
    assert sample.rtt_s == 0.025
    assert (sample.num_segments, sample.num_retransmitted) == (0, 0)


@pytest.mark.parametrize("size", [0, 1, 68, 75])
def test_too_short_an_answer_is_none(size: int) -> None:
    assert parse_tcp_info(an_answer(size)) is None


def test_a_socket_that_cannot_tell_is_no_error() -> None:
    class NoTcp:
        def getsockopt(self, level: int, option: int, size: int, /) -> bytes:
            raise OSError("not supported")

    assert read_path(NoTcp()) is None


def test_the_window_is_found_where_the_kernel_tells_it() -> None:
    class Tcp:
        def __init__(self, size: int) -> None:
            self._size = size

        def getsockopt(self, level: int, option: int, size: int, /) -> bytes:
            data = bytearray(an_answer())
            struct.pack_into("=I", data, 228, 49_152)
            return bytes(data[: self._size])

    assert read_window(Tcp(232)) == 49_152
    assert read_window(Tcp(228)) is None
