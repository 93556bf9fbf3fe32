"""``clawstream models reload`` and ``versions``: which versions a running gateway serves."""

from __future__ import annotations

import json
import urllib.error
import urllib.request
from typing import Annotated, Any
from urllib.parse import quote, urlsplit

import typer
from rich.console import Console
from rich.table import Table
from rich.text import Text

from gateway.commands.exits import CommandError, ExitCode
from gateway.commands.stream import DEFAULT_URL, ApiKey, Url

_SCHEMES = {"ws": "http", "wss": "https", "http": "http", "https": "https"}
_ASK_S = 5.0
_LOAD_S = 600.0  # spawning, warming up and draining take their time
_MAX_BYTES = 4 * 1024 * 1024


def reload_model(
    model: Annotated[str, typer.Argument(help="As the gateway calls it.")],
    version: Annotated[
        str | None, typer.Option(help="This one; default: what the model's policy says.")
    ] = None,
    url: Url = DEFAULT_URL,
    api_key: ApiKey = None,
) -> None:
    """Let a running gateway load a model again, without losing a frame.

    The new version is started and warmed up beside the old one, then takes over. If it does not
    start, nothing changes, and this ends with 1 and the reason.

    [bold]Examples[/bold]

      clawstream models reload helmets
      clawstream models reload helmets --version 3
    """
    body = {} if version is None else {"parameters": {"version": version}}
    path = f"/v2/repository/models/{quote(model, safe='')}/load"
    answer = ask_gateway(url, path, api_key, body, timeout_s=_LOAD_S)
    Console(highlight=False).print(f"{answer['name']}: version {answer['version']} serves")


def list_versions(
    model: Annotated[str, typer.Argument(help="As the gateway calls it.")],
    url: Url = DEFAULT_URL,
    api_key: ApiKey = None,
) -> None:
    """Show which versions of a model a running gateway has, and why one does not serve.

    [bold]Examples[/bold]

      clawstream models versions helmets
    """
    table = Table(box=None)
    for heading in ("version", "role", "state"):
        table.add_column(heading, no_wrap=True)
    table.add_column("reason")
    for each in versions_of(model, url, api_key):
        table.add_row(each["version"], each["role"], each["state"].lower(), Text(each["reason"]))
    Console(highlight=False).print(table)


def versions_of(model: str, url: str, api_key: str | None) -> list[dict[str, str]]:
    """The gateway's index entries for a model; raises CommandError when it has none."""
    entries = ask_gateway(url, "/v2/repository/index", api_key, {}, timeout_s=_ASK_S)
    found = [each for each in entries if each["name"] == model]
    if not found:
        raise CommandError(ExitCode.MISSING, f"the gateway at {url} serves no model {model!r}")
    return found


def ask_gateway(url: str, path: str, api_key: str | None, body: Any, *, timeout_s: float) -> Any:
    """POST JSON, without any proxy, and return the JSON answer.

    Raises:
        CommandError: not reachable, or it refused; the text has the gateway's own reason.
    """
    parts = urlsplit(url)
    if parts.scheme not in _SCHEMES or not parts.netloc:
        raise CommandError(ExitCode.USAGE, f"--url: must be like http://127.0.0.1:8400, got {url}")
    headers = {"Content-Type": "application/json"}
    if api_key:
        headers["Authorization"] = f"Bearer {api_key}"
    address = f"{_SCHEMES[parts.scheme]}://{parts.netloc}{path}"
    request = urllib.request.Request(address, json.dumps(body).encode(), headers)
    opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
    try:
        with opener.open(request, timeout=timeout_s) as response:
            return json.loads(response.read(_MAX_BYTES))
    except urllib.error.HTTPError as error:
        raise CommandError(_exit_code(error.code), f"{url}: {_reason(error)}") from None
    except (OSError, ValueError) as error:
        reason = getattr(error, "reason", None) or error
        raise CommandError(ExitCode.CANNOT_CONNECT, f"{url}: {reason}") from None


def _exit_code(status: int) -> ExitCode:
    if status in (401, 403):
        return ExitCode.CANNOT_CONNECT
    return ExitCode.MISSING if status == 404 else ExitCode.FAILED


def _reason(error: urllib.error.HTTPError) -> str:
    """The detail of the problem that the gateway answered with."""
    try:
        problem = json.loads(error.read(_MAX_BYTES))
        return str(problem.get("detail") or problem["title"])
    except (ValueError, KeyError, AttributeError):
        return f"{error.code} {error.reason}"
