"""What the kernel says, and what happens when it says less."""

from __future__ import annotations

import contextlib
import socket
import struct

import pytest

from gateway.net.tcp_info import parse_tcp_info, read_path, read_window
from gateway.stream.network_estimate import PathSample

pytestmark = pytest.mark.unit


def an_answer(size: int = 232) -> bytes:
    """``struct tcp_info`` as the kernel fills it, with other fields full of ones."""
    data = bytearray(b"\xff" * 232)
    struct.pack_into("=II", data, 68, 25_000, 5_000)
    struct.pack_into("=I", data, 100, 7)
    struct.pack_into("=I", data, 156, 1_000)
    struct.pack_into("=Q", data, 120, 5_000_000_000)
    return bytes(data[:size])


def test_round_trip_segments_and_bytes_are_found() -> None:
    assert parse_tcp_info(an_answer(), 4_000) == PathSample(
        rtt_s=0.025,
        rttvar_s=0.005,
        num_segments=1_000,
        num_retransmitted=7,
        num_bytes_acked=5_000_000_000,
        num_bytes_held=4_000,
    )


def test_an_older_kernel_says_nothing_of_loss_nor_of_what_it_holds() -> None:
    assert parse_tcp_info(an_answer(104), 4_000) == PathSample(
        rtt_s=0.025, rttvar_s=0.005, num_segments=0, num_retransmitted=0
    )


def test_what_nobody_reads_is_held_and_then_acknowledged() -> None:
    with (
        socket.create_server(("127.0.0.1", 0)) as listener,
        socket.create_connection(listener.getsockname()) as reader,
        listener.accept()[0] as writer,
    ):
        writer.setblocking(False)
        num_sent = 0
        with contextlib.suppress(BlockingIOError):
            while True:
                num_sent += writer.send(bytes(65_536))
        before = read_path(writer)
        assert before is not None
        assert before.num_bytes_held > 0
        assert before.num_bytes_acked + before.num_bytes_held == pytest.approx(num_sent, abs=1)
        num_read = 0
        while num_read < num_sent:
            num_read += len(reader.recv(1 << 20))
        writer.settimeout(10)
        reader.sendall(b"all of it")  # which acknowledges
        assert writer.recvmsg(64)[0]
        after = read_path(writer)
    assert after is not None
    assert after.num_bytes_held == 0
    assert after.num_bytes_acked == pytest.approx(num_sent, abs=1)


@pytest.mark.parametrize("size", [0, 1, 68, 75])
def test_too_short_an_answer_is_none(size: int) -> None:
    assert parse_tcp_info(an_answer(size), 0) is None


def test_a_socket_that_cannot_tell_is_no_error() -> None:
    class NoTcp:
        def fileno(self) -> int:
            raise OSError("not open")

        def getsockopt(self, level: int, option: int, size: int, /) -> bytes:
            raise OSError("not supported")

    assert read_path(NoTcp()) is None


def test_the_window_is_found_where_the_kernel_tells_it() -> None:
    class Tcp:
        def __init__(self, size: int) -> None:
            self._size = size

        def fileno(self) -> int:
            return -1

        def getsockopt(self, level: int, option: int, size: int, /) -> bytes:
            data = bytearray(an_answer())
            struct.pack_into("=I", data, 228, 49_152)
            return bytes(data[: self._size])

    assert read_window(Tcp(232)) == 49_152
    assert read_window(Tcp(228)) is None
