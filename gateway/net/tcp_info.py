"""What the kernel measures on a TCP connection anyway: ``TCP_INFO``."""

from __future__ import annotations

import asyncio
import fcntl
import socket
import struct
import termios
from typing import Protocol

from gateway.stream.network_estimate import PathSample

# struct tcp_info of linux/tcp.h. It only ever grows at its end, and an older kernel fills less of
# it: how much came back says what is known.
_TCP_INFO = getattr(socket, "TCP_INFO", 11)
_INFO_BYTES = 160
_RTT = struct.Struct("=II")  # tcpi_rtt, tcpi_rttvar: microseconds
_RTT_OFFSET = 68
_COUNT, _BYTES = struct.Struct("=I"), struct.Struct("=Q")
_TOTAL_RETRANS_OFFSET = 100
_BYTES_ACKED_OFFSET = 120  # since Linux 4.2
_DATA_SEGS_OUT_OFFSET = 156  # since Linux 4.6
_SND_WND_OFFSET = 228  # since Linux 5.4


class OptionSocket(Protocol):
    """The part of a socket in use; uvloop's are no ``socket.socket``."""

    def fileno(self) -> int: ...

    def getsockopt(self, level: int, option: int, size: int, /) -> bytes: ...


def read_path(sock: OptionSocket) -> PathSample | None:
    """Ask the kernel; None if it is no TCP connection, or the system has no such answer."""
    try:
        data = sock.getsockopt(socket.IPPROTO_TCP, _TCP_INFO, _INFO_BYTES)
        # SIOCOUTQ of tcp(7), which has this number.
        held = fcntl.ioctl(sock.fileno(), termios.TIOCOUTQ, bytes(_COUNT.size))
    except OSError:
        return None
    return parse_tcp_info(data, _COUNT.unpack(held)[0])


def read_transport_path(transport: asyncio.BaseTransport) -> PathSample | None:
    """Ask the kernel about a transport's connection; None if it is over."""
    # A closed transport's descriptor may be another's by now.
    if transport.is_closing():
        return None
    sock = transport.get_extra_info("socket")
    return None if sock is None else read_path(sock)


def read_window(sock: OptionSocket) -> int | None:
    """How many bytes the peer takes beyond those that it has acknowledged: what is free of its
    receive buffer, as it last said. None if the system does not tell."""
    size_bytes = _SND_WND_OFFSET + _COUNT.size
    try:
        data = sock.getsockopt(socket.IPPROTO_TCP, _TCP_INFO, size_bytes)
    except OSError:
        return None
    if len(data) < size_bytes:
        return None
    (window,) = _COUNT.unpack_from(data, _SND_WND_OFFSET)
    return int(window)


def parse_tcp_info(data: bytes, num_bytes_held: int) -> PathSample | None:
    """None if the round trip is not in it."""
    if len(data) < _RTT_OFFSET + _RTT.size:
        return None
    rtt_us, rttvar_us = _RTT.unpack_from(data, _RTT_OFFSET)
    num_segments = num_retransmitted = num_bytes_acked = 0
    if len(data) >= _DATA_SEGS_OUT_OFFSET + _COUNT.size:
        (num_segments,) = _COUNT.unpack_from(data, _DATA_SEGS_OUT_OFFSET)
        (num_retransmitted,) = _COUNT.unpack_from(data, _TOTAL_RETRANS_OFFSET)
    if len(data) >= _BYTES_ACKED_OFFSET + _BYTES.size:
        (num_bytes_acked,) = _BYTES.unpack_from(data, _BYTES_ACKED_OFFSET)
    else:
        num_bytes_held = 0
    return PathSample(
        rtt_s=rtt_us / 1e6,
        rttvar_s=rttvar_us / 1e6,
        num_segments=num_segments,
        num_retransmitted=num_retransmitted,
        num_bytes_acked=num_bytes_acked,
        num_bytes_held=num_bytes_held,
    )
