"""``clawstream demo``: everything on one machine, with one command."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.console import Console

from gateway.commands.chat import DEFAULT_MODEL as CHAT_MODEL
from gateway.commands.exits import CommandError, ExitCode
from gateway.commands.models import pull_with_progress
from gateway.commands.out_file import check_video_file
from gateway.commands.serve import run_gateway, serving_overrides
from gateway.commands.stream import finish

if TYPE_CHECKING:
    from engine.models.store import ModelStore
    from gateway.commands.run import RunOptions, RunOutcome

_HOST = "127.0.0.1"
_PAGE_PORT = 8400
_CLIPS = ("face", "street")


def demo(
    headless: Annotated[
        bool, typer.Option("--headless", help="No page: drive the gateway with the client.")
    ] = False,
    chat: Annotated[
        bool, typer.Option("--chat", help="Serve a language model, too, and the page's Chat tab.")
    ] = False,
    seconds: Annotated[
        float, typer.Option(min=1.0, max=86_400.0, help="How long, with --headless.")
    ] = 10.0,
    out: Annotated[
        Path | None,
        typer.Option(
            callback=check_video_file,
            help="With --headless: write annotated frames to this MP4 file.",
        ),
    ] = None,
    port: Annotated[
        int | None,
        typer.Option(
            min=0,
            max=65_535,
            help=f"0 takes any free port. Default: {_PAGE_PORT}, with --headless 0.",
        ),
    ] = None,
    model: Annotated[
        str, typer.Option(help="A catalogue name or a model.onnx file.")
    ] = "centerface",
    clip: Annotated[
        str, typer.Option(help="With --headless: face, street, or a video file.")
    ] = "face",
) -> None:
    """Try it: get the default model and two clips (once), start the gateway, print the address.

    With --headless the same gateway, in a process of its own, gets a clip from the real client;
    then come the receipts and latencies. It ends with 1 if the receipts do not add up.

    [bold]Examples[/bold]

      clawstream demo
      clawstream demo --chat
      clawstream demo --headless --seconds 10 --out annotated.mp4
      clawstream demo --headless --model efficientnet-lite0 --clip street
    """
    from engine.models.store import ModelStore, is_file_reference

    if not headless and out is not None:
        raise CommandError(ExitCode.USAGE, "--out: only together with --headless")
    if headless and chat:
        raise CommandError(ExitCode.USAGE, "--chat: is for the page, not for --headless")
    if headless and clip not in _CLIPS:
        _check_clip(clip)
    console = Console()
    store = ModelStore()
    served = (model, CHAT_MODEL) if chat else (model,)
    named = [name for name in served if not is_file_reference(name)]
    pull_with_progress(store, (*named, *_CLIPS), console)
    if not headless:
        _serve_page(_PAGE_PORT if port is None else port, served)
        return

    from gateway.commands.run import RunOptions

    options = RunOptions(
        url="",
        source=_clip_file(store, clip),
        model=Path(model).stem if is_file_reference(model) else model,
        loop=True,
        seconds=seconds,
        out=out,
    )
    outcome = asyncio.run(_drive(options, port or 0, model, console))
    finish(outcome, options, console)


def _serve_page(port: int, models: Sequence[str]) -> None:
    from gateway.config import load_config

    hint = "Open the address in a browser; Ctrl-C ends it."
    if CHAT_MODEL in models:
        hint += "\nThe page has a Chat tab; “clawstream chat” talks in the terminal."
    run_gateway(load_config(None, serving_overrides(_HOST, port, models)), hint)


async def _drive(options: RunOptions, port: int, model: str, console: Console) -> RunOutcome:
    from gateway.commands.gateway_process import gateway_process
    from gateway.commands.run import Listeners, run_stream

    arguments = ("--host", _HOST, "--port", str(port), "--model", model)
    async with gateway_process(arguments) as url:
        console.print(f"gateway at {url}", highlight=False)
        return await run_stream(replace(options, url=url), console, Listeners())


def _check_clip(clip: str) -> None:
    """Before anything is pulled or started."""
    from gateway.client import SourceError
    from gateway.client.sources import open_source

    try:
        open_source(clip)
    except SourceError as error:
        text = f"--clip: {error}; take {' or '.join(_CLIPS)}, or a video file"
        raise CommandError(ExitCode.MISSING, text) from error


def _clip_file(store: ModelStore, clip: str) -> str:
    return str(store.clip_path(clip)) if clip in _CLIPS else clip
