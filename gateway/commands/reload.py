"""``clawstream models reload`` and ``versions``: which versions a running gateway serves."""

from __future__ import annotations

from typing import Annotated, TypedDict
from urllib.parse import quote

import msgspec
import typer
from rich.console import Console
from rich.table import Table

from gateway.commands.ask_gateway import DEFAULT_URL, ApiKey, Url, post_json
from gateway.commands.exits import CommandError, ExitCode

_LOAD_S = 600.0  # spawning, warming up and draining take their time


class _Loaded(msgspec.Struct, frozen=True):
    """The gateway's answer to a load: what serves now."""

    name: str
    version: str


class Version(TypedDict):
    """A version in the gateway's index; ``docs/http-api.md`` tells what the members say."""

    name: str
    version: str
    state: str
    reason: str
    role: str


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
    loaded = post_json(url, path, api_key, body, _Loaded, timeout_s=_LOAD_S)
    typer.echo(f"{loaded.name}: version {loaded.version} serves")


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
        table.add_row(each["version"], each["role"], each["state"].lower(), each["reason"])
    Console(highlight=False, markup=False).print(table)


def versions_of(model: str, url: str, api_key: str | None) -> list[Version]:
    """The gateway's index entries for a model; raises CommandError when it has none."""
    entries = post_json(url, "/v2/repository/index", api_key, {}, list[Version])
    found = [each for each in entries if each["name"] == model]
    if not found:
        raise CommandError(ExitCode.MISSING, f"the gateway at {url} serves no model {model!r}")
    return found
