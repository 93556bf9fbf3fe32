"""``clawstream say``: an operator's words to the people who use a gateway."""

from __future__ import annotations

from typing import Annotated

import msgspec
import typer

from gateway.commands.ask_gateway import DEFAULT_URL, ApiKey, Url, post_json
from gateway.commands.exits import CommandError, ExitCode


class _Told(msgspec.Struct, frozen=True):
    """The gateway's answer: how many sessions were told."""

    sessions: int


def say(
    text: Annotated[str, typer.Argument(help="What to tell them.")],
    session: Annotated[
        str | None, typer.Option(help="Only this session; its id is in the gateway's log.")
    ] = None,
    stream: Annotated[
        int | None, typer.Option(min=0, help="Only this stream of the session.")
    ] = None,
    url: Url = DEFAULT_URL,
    api_key: ApiKey = None,
) -> None:
    """Tell everybody who is connected something; it comes before all text that waits.

    The page and [bold]clawstream chat[/bold] show it. A gateway without keys takes it from its own
    machine only; one with keys wants one of server.admin_keys.

    [bold]Examples[/bold]

      clawstream say "Restarting in five minutes"
      clawstream say "Your camera moved" --session 1f6a0c2b9d4e7788 --stream 1
    """
    if not text.strip():
        raise CommandError(ExitCode.USAGE, "the message is empty")
    if stream is not None and session is None:
        raise CommandError(ExitCode.USAGE, "--stream needs --session: every session has its own")
    body = {"text": text, "session": session, "stream": stream}
    num_told = post_json(url, "/v1/admin/say", api_key, body, _Told).sessions
    typer.echo(f"told {num_told} session" + ("" if num_told == 1 else "s"))
