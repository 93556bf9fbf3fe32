"""The command line, ``clawstream``. Importing this needs the base install only."""

from __future__ import annotations

from importlib import metadata
from typing import Annotated, Any

import typer

from gateway.commands import chat, demo, models, profile, say, serve, stream, top
from gateway.commands.exits import readable_errors
from gateway.commands.help_text import HelpfulCommand, HelpfulGroup


class _ReadableGroup(HelpfulGroup):
    """Every command's errors end in one place."""

    def invoke(self, ctx: Any) -> Any:
        with readable_errors():
            return super().invoke(ctx)


app = typer.Typer(
    cls=_ReadableGroup,
    no_args_is_help=True,
    rich_markup_mode="rich",
    pretty_exceptions_show_locals=False,  # locals may hold keys and pictures
)


def _print_version(wanted: bool) -> None:
    if not wanted:
        return
    try:
        version = metadata.version("clawstream")
    except metadata.PackageNotFoundError:
        version = "(source tree, not installed)"
    typer.echo(f"clawstream {version}")
    raise typer.Exit


@app.callback()
def _root(
    version: Annotated[
        bool,
        typer.Option("--version", help="Show the version.", callback=_print_version, is_eager=True),
    ] = False,
) -> None:
    """Video frames in, results out; prompts in, tokens out; over one WebSocket.

    [bold]Start here[/bold]

      clawstream demo                              a page with your camera
      clawstream demo --headless --seconds 10      the same path without a browser
      clawstream stream 0 --model centerface       a camera into a running gateway
      clawstream demo --chat                       the page with a language model
      clawstream chat                              talk to it in the terminal
    """


app.command(cls=HelpfulCommand)(demo.demo)
app.command(cls=HelpfulCommand)(serve.serve)
app.command(cls=HelpfulCommand)(stream.stream)
app.command(cls=HelpfulCommand)(chat.chat)
app.command(cls=HelpfulCommand)(say.say)
app.command("check-config", cls=HelpfulCommand)(serve.check_config)
app.command(cls=HelpfulCommand)(top.top)
app.command(cls=HelpfulCommand)(profile.profile)
app.add_typer(models.app, name="models")
