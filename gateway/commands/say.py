"""``clawstream say``: an operator's words to the people who use a gateway."""

from __future__ import annotations

import json
import urllib.error
import urllib.request
from typing import Annotated
from urllib.parse import urlsplit, urlunsplit

import typer

from gateway.commands.exits import CommandError, ExitCode
from gateway.commands.stream import DEFAULT_URL

PATH = "/v1/admin/say"
TIMEOUT_S = 10.0
MAX_ANSWER_BYTES = 64 * 1024
_SCHEMES = {"ws": "http", "wss": "https", "http": "http", "https": "https"}


def say(
    text: Annotated[str, typer.Argument(help="What to tell them.")],
    session: Annotated[
        str | None, typer.Option(help="Only this session; its id is in the gateway's log.")
    ] = None,
    stream: Annotated[
        int | None, typer.Option(min=0, help="Only this stream of the session.")
    ] = None,
    url: Annotated[str, typer.Option(help="The gateway.")] = DEFAULT_URL,
    api_key: Annotated[
        str | None,
        typer.Option(
            envvar="CLAWSTREAM_API_KEY",
            help="One of server.admin_keys. Better set in the environment: command lines are "
            "visible to others.",
        ),
    ] = None,
) -> None:
    """Tell everybody who is connected something; it comes before all text that waits.

    The page and [bold]clawstream chat[/bold] show it. A gateway without keys takes it from its own
    machine only.

    [bold]Examples[/bold]

      clawstream say "Restarting in five minutes"
      clawstream say "Your camera is upside down" --session 1f6a0c2b9d4e7788 --stream 1
    """
    if stream is not None and session is None:
        raise CommandError(ExitCode.USAGE, "--stream needs --session: every session has its own")
    body = {"text": text, "session": session, "stream": stream}
    num_told = _post(_address(url), body, api_key)
    typer.echo(f"told {num_told} session" + ("" if num_told == 1 else "s"))


def _address(url: str) -> str:
    """``http(s)://host:port/v1/admin/say`` for an address in any usual form."""
    parts = urlsplit(url if "://" in url else f"ws://{url}")
    if parts.scheme not in _SCHEMES or not parts.hostname or parts.username is not None:
        raise CommandError(ExitCode.USAGE, f"--url: not an address of a gateway: {url!r}")
    return urlunsplit((_SCHEMES[parts.scheme], parts.netloc, PATH, "", ""))


def _post(address: str, body: dict[str, str | int | None], api_key: str | None) -> int:
    headers = {"Content-Type": "application/json"}
    if api_key:
        headers["Authorization"] = f"Bearer {api_key}"
    request = urllib.request.Request(address, json.dumps(body).encode(), headers)
    # Without proxies of the environment: what they pass on is not taken for this machine's.
    opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
    try:
        with opener.open(request, timeout=TIMEOUT_S) as response:
            answer = json.loads(response.read(MAX_ANSWER_BYTES))
            return int(answer["sessions"])
    except urllib.error.HTTPError as error:
        with error:
            raise CommandError(ExitCode.FAILED, _refusal(error)) from None
    except (OSError, TimeoutError) as error:
        reason = getattr(error, "reason", error)
        text = f"{address}: cannot connect: {reason}"
        raise CommandError(ExitCode.CANNOT_CONNECT, text) from None
    except (ValueError, KeyError, TypeError):
        text = f"{address} is no clawstream gateway"
        raise CommandError(ExitCode.CANNOT_CONNECT, text) from None


def _refusal(error: urllib.error.HTTPError) -> str:
    """The problem body in words; the status alone if there is none."""
    try:
        problem = json.loads(error.read(MAX_ANSWER_BYTES))
        title, detail = str(problem["title"]), str(problem.get("detail", ""))
    except (ValueError, KeyError, TypeError, OSError):
        return f"the gateway answers with HTTP {error.code}"
    return f"{title}: {detail}" if detail else title
