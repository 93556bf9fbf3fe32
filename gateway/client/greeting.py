"""Opens a connection: address, WebSocket handshake, ``hello`` and ``welcome``.

The key travels in the first message, never in the address, where logs would keep it.
"""

from __future__ import annotations

import asyncio
import errno
import ipaddress
from urllib.parse import urlsplit, urlunsplit

import msgspec
from websockets.asyncio.client import ClientConnection
from websockets.asyncio.client import connect as connect_websocket
from websockets.exceptions import ConnectionClosed, InvalidHandshake, InvalidStatus, InvalidURI
from websockets.http11 import Response

from gateway.client.errors import AuthError, ConnectError, problem_text
from gateway.client.link import Link, LinkSettings
from gateway.wire import codec
from gateway.wire.codec import ProtocolError
from gateway.wire.messages import (
    MAX_TEXT_BYTES,
    SUBPROTOCOL,
    ErrorMessage,
    Hello,
    Ping,
    Problem,
    ResumeRequest,
    Welcome,
)

PATH = "/v1/stream"
AUTH_CODE = 4501
_SCHEMES = {"ws": "ws", "wss": "wss", "http": "ws", "https": "wss"}

NOTHING_LISTENS = "nothing listens there; start one with `clawstream demo` or `clawstream serve`"


def stream_address(url: str) -> str:
    """``ws(s)://host:port/v1/stream`` for an address given in any usual form.

    Raises:
        ValueError: it has no host, another scheme, or carries a user name or query.
    """
    parts = urlsplit(url if "://" in url else f"ws://{url}")
    if parts.scheme not in _SCHEMES or not parts.hostname:
        raise ValueError(f"not an address of a gateway: {url!r}")
    if parts.username is not None or parts.query or parts.fragment:
        raise ValueError("the address carries more than host and path; pass a key as api_key")
    path = parts.path if parts.path not in ("", "/") else PATH
    return urlunsplit((_SCHEMES[parts.scheme], parts.netloc, path, "", ""))


async def open_link(
    address: str,
    api_key: str | None,
    settings: LinkSettings,
    resume: ResumeRequest | None = None,
) -> Link:
    """Connect and exchange greetings within ``open_timeout_s``; ``welcome.resumed`` answers
    ``resume``.

    Raises:
        AuthError: the server wants another key.
        ConnectError: anything else that went wrong, in words.
    """
    try:
        async with asyncio.timeout(settings.open_timeout_s):
            socket = await _open_socket(address, settings)
            try:
                welcome = await _greet(socket, Hello(token=api_key, resume=resume))
                return Link(socket, welcome, settings)
            except BaseException:
                socket.transport.abort()
                raise
    except TimeoutError:
        raise ConnectError(
            f"{address} did not answer within {settings.open_timeout_s:g} s"
        ) from None
    except InvalidStatus as error:
        raise _refusal(address, error.response) from None
    except (InvalidHandshake, InvalidURI) as error:
        raise ConnectError(f"{address} is no clawstream gateway: {error}") from None
    except ConnectionClosed as closed:
        raise _closed(address, closed) from None
    except OSError as error:
        raise ConnectError(f"cannot reach {address}: {_unreachable(error)}") from None


def _unreachable(error: OSError) -> str:
    """Why; where a name has several addresses, asyncio has only the text of each one's error."""
    if f"[Errno {errno.ECONNREFUSED}]" in str(error):
        return NOTHING_LISTENS
    return error.strerror or str(error)


async def _open_socket(address: str, settings: LinkSettings) -> ClientConnection:
    connecting = connect_websocket(
        address,
        subprotocols=[SUBPROTOCOL],  # type: ignore[list-item]  # a NewType of str
        compression=None,
        max_size=max(codec.MAX_BINARY_BYTES, MAX_TEXT_BYTES),
        open_timeout=None,  # one deadline covers everything
        close_timeout=settings.close_timeout_s,
        ping_interval=None,  # the protocol has its own pings
        proxy=None if _is_loopback(address) else True,
    )
    socket = await connecting
    if connecting.uri != address:
        socket.transport.abort()  # the key is for the address that the caller named
        raise ConnectError(f"{address} redirects to {connecting.uri}: connect there")
    if socket.subprotocol != SUBPROTOCOL:
        socket.transport.abort()
        raise ConnectError(f"{address} does not speak {SUBPROTOCOL}")
    return socket


async def _greet(socket: ClientConnection, hello: Hello) -> Welcome:
    await socket.send(codec.encode(hello), text=True)
    problem: Problem | None = None
    try:
        while True:
            data = await socket.recv()
            if not isinstance(data, str):
                raise ConnectError("the server sent pictures before its greeting")
            message = codec.decode_server(data.encode())
            if isinstance(message, Welcome):
                return message
            if isinstance(message, ErrorMessage):
                problem = message.problem  # why the connection is about to close
            elif not isinstance(message, Ping):
                raise ConnectError("the server's first message is no greeting")
    except ProtocolError as error:
        raise ConnectError(f"the server's greeting is malformed: {error.detail}") from None
    except ConnectionClosed as closed:
        code = closed.rcvd.code if closed.rcvd is not None else None
        if problem is None:
            raise
        kind = AuthError if code == AUTH_CODE or problem.status == 401 else ConnectError
        raise kind(problem_text(problem), code=code) from None


def _closed(address: str, closed: ConnectionClosed) -> ConnectError:
    if closed.rcvd is None:
        return ConnectError(f"{address} broke the connection off")
    code, reason = closed.rcvd.code, closed.rcvd.reason
    if code == AUTH_CODE:
        return AuthError(reason or "a valid key is required", code=code)
    return ConnectError(f"{address} closed the connection: {reason} (code {code})", code=code)


def _refusal(address: str, response: Response) -> ConnectError:
    """An HTTP answer instead of a WebSocket; a problem body says why."""
    detail = f"HTTP {response.status_code} {response.reason_phrase}"
    try:
        detail = problem_text(msgspec.json.decode(response.body or b"", type=Problem))
    except (msgspec.DecodeError, RecursionError):
        pass  # not one of our servers, or a proxy in between: the status has to do
    kind = AuthError if response.status_code in (401, 403) else ConnectError
    return kind(f"{address} refused: {detail}")


def _is_loopback(address: str) -> bool:
    host = urlsplit(address).hostname or ""
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False
