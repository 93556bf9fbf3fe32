"""A running gateway, asked over HTTP: its address, the key, time-outs, and what may go wrong."""

from __future__ import annotations

import http.client
import json
import urllib.error
import urllib.request
from typing import Annotated, Any, TypeVar
from urllib.parse import urlsplit

import msgspec
import typer

from gateway.commands.exits import CommandError, ExitCode

T = TypeVar("T")

DEFAULT_URL = "ws://127.0.0.1:8400"
# Of every command that talks to a running gateway.
Url = Annotated[str, typer.Option(help="The gateway.")]
ApiKey = Annotated[
    str | None,
    typer.Option(
        envvar="CLAWSTREAM_API_KEY",
        help="Better set in the environment: command lines are visible to others.",
    ),
]

_TIMEOUT_S = 10.0
_MAX_BYTES = 16 * 1024 * 1024
_SCHEMES = {"ws": "http", "wss": "https", "http": "http", "https": "https"}
_EXIT_CODES = {
    401: ExitCode.CANNOT_CONNECT,
    403: ExitCode.CANNOT_CONNECT,
    404: ExitCode.MISSING,
}
# Of what is no JSON, other JSON than it should be, or JSON nested without an end.
_DECODE_ERRORS = (msgspec.DecodeError, RecursionError)


class _Problem(msgspec.Struct, frozen=True):
    """What a gateway's refusals say, as far as it is shown."""

    title: str
    detail: str = ""


def http_address(url: str, path: str = "") -> str:
    """``http(s)://HOST:PORT`` and ``path``, for a gateway's address in any usual form.

    Raises:
        CommandError: it has no host, another scheme, or carries a user name.
    """
    try:
        parts = urlsplit(url if "://" in url else f"ws://{url}")
        has_host = parts.hostname and parts.username is None and parts.port != 0
        is_usual = parts.scheme in _SCHEMES and has_host
    except ValueError:  # a port that is none, or half an IPv6 address
        is_usual = False
    if not is_usual:
        raise CommandError(ExitCode.USAGE, f"--url: must be like {DEFAULT_URL}, got {url!r}")
    return f"{_SCHEMES[parts.scheme]}://{parts.netloc}{path}"


def get_text(url: str, path: str, api_key: str | None) -> str:
    """The body of the answer to GET; raises CommandError as ``post_json`` does."""
    return _ask(urllib.request.Request(http_address(url, path)), api_key, _TIMEOUT_S)


def post_json(
    url: str,
    path: str,
    api_key: str | None,
    body: Any,
    answer: type[T],
    *,
    timeout_s: float = _TIMEOUT_S,
) -> T:
    """POST JSON and return the JSON answer, which may take up to ``timeout_s``.

    Raises:
        CommandError: not reachable, no gateway (its answer is no ``answer``), or it refused; then
            the text is its own reason.
    """
    address = http_address(url, path)
    headers = {"Content-Type": "application/json"}
    request = urllib.request.Request(address, json.dumps(body).encode(), headers)
    text = _ask(request, api_key, timeout_s)
    try:
        return msgspec.json.decode(text, type=answer)
    except _DECODE_ERRORS:
        reason = f"{url}: whatever answers is no clawstream"
        raise CommandError(ExitCode.CANNOT_CONNECT, reason) from None


def _ask(request: urllib.request.Request, api_key: str | None, timeout_s: float) -> str:
    if api_key:
        request.add_header("Authorization", f"Bearer {api_key}")
    # Without proxies of the environment: what they pass on is not taken for this machine's.
    opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
    try:
        with opener.open(request, timeout=timeout_s) as response:
            return str(response.read(_MAX_BYTES), "utf-8", "replace")
    except urllib.error.HTTPError as error:
        with error:
            raise _refusal(error, has_key=bool(api_key)) from None
    except (OSError, http.client.HTTPException) as error:
        cause = getattr(error, "reason", None) or error
        text = f"cannot reach {request.full_url}: {_unreachable(cause)}"
        raise CommandError(ExitCode.CANNOT_CONNECT, text) from None


def _unreachable(cause: object) -> str:
    from gateway.client.greeting import NOTHING_LISTENS  # which most commands can do without

    return NOTHING_LISTENS if isinstance(cause, ConnectionRefusedError) else str(cause)


def _refusal(error: urllib.error.HTTPError, *, has_key: bool) -> CommandError:
    """What the problem body says; what answers without one is no gateway."""
    try:
        problem = msgspec.json.decode(error.read(_MAX_BYTES), type=_Problem)
    except (OSError, http.client.HTTPException, *_DECODE_ERRORS):
        text = f"{error.url}: {error.code} {error.reason}"
        return CommandError(ExitCode.CANNOT_CONNECT, text)
    reason = problem.detail or problem.title
    if error.code == 401:
        reason = f"{reason if has_key else problem.title}; set CLAWSTREAM_API_KEY"
    code = _EXIT_CODES.get(error.code, ExitCode.FAILED)
    return CommandError(code, f"{error.url}: {' '.join(reason.split())}")
