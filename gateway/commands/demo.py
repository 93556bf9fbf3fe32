"""``clawstream demo``: everything on one machine, with one command."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.console import Console

from gateway.commands.chat import DEFAULT_MODEL as CHAT_MODEL
from gateway.commands.exits import CommandError, ExitCode
from gateway.commands.models import pull_with_progress
from gateway.commands.out_file import check_not_source, check_video_file
from gateway.commands.serve import check_address, run_gateway, serving_overrides
from gateway.commands.stream import finish

if TYPE_CHECKING:
    from engine.models.store import ModelStore
    from gateway.commands.run import RunOptions, RunOutcome

_HOST = "127.0.0.1"
_PAGE_PORT = 8400
_CLIPS = ("face", "street")
_SECONDS = 10.0


def demo(
    headless: Annotated[
        bool, typer.Option("--headless", help="No page: drive the gateway with the client.")
    ] = False,
    chat: Annotated[
        bool, typer.Option("--chat", help="Serve a language model, too, and the page's Chat tab.")
    ] = False,
    seconds: Annotated[
        float | None,
        typer.Option(
            min=1.0,
            max=86_400.0,
            help=f"How long, with --headless. Default: {_SECONDS:g}.",
        ),
    ] = None,
    out: Annotated[
        Path | None,
        typer.Option(
            callback=check_video_file,
            help="With --headless: write annotated frames to this MP4 file, at most 15 a second "
            "of a video.",
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
        str | None,
        typer.Option(help=f"With --headless: face, street, or a video file. Default: {_CLIPS[0]}."),
    ] = None,
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

    if not headless:
        _refuse_headless_options({"--out": out, "--clip": clip, "--seconds": seconds})
    elif chat:
        raise CommandError(ExitCode.USAGE, "--chat: is for the page, not for --headless")
    console, store = Console(), ModelStore()
    clip = _CLIPS[0] if clip is None else clip
    if headless:
        _check_clip(store, clip, out)
    if port is None:
        port = 0 if headless else _PAGE_PORT
    check_address(_HOST, port)
    served = (model, CHAT_MODEL) if chat else (model,)
    named = [name for name in served if not is_file_reference(name)]
    pull_with_progress(store, (*named, *_CLIPS), console)
    if not headless:
        _serve_page(port, served)
        return

    from gateway.commands.run import RunOptions

    options = RunOptions(
        url="",
        source=_clip_file(store, clip),
        model=Path(model).stem if is_file_reference(model) else model,
        loop=True,
        seconds=_SECONDS if seconds is None else seconds,
        out=out,
    )
    outcome = asyncio.run(_drive(options, port, model, console))
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


def _refuse_headless_options(given: Mapping[str, object | None]) -> None:
    for option, value in given.items():
        if value is not None:
            raise CommandError(ExitCode.USAGE, f"{option}: only together with --headless")


def _check_clip(store: ModelStore, clip: str, out: Path | None) -> None:
    """Before anything is pulled or started."""
    from gateway.client import SourceError
    from gateway.client.sources import open_source

    if clip in _CLIPS:
        here = {item.name: item.path for item in store.list()}
        check_not_source(out, str(here[clip] or ""))  # one that is yet to come: by run_stream
        return
    try:
        open_source(clip)
    except SourceError as error:
        text = f"--clip: {error}; take {' or '.join(_CLIPS)}, or a video file"
        raise CommandError(ExitCode.MISSING, text) from error
    check_not_source(out, clip)


def _clip_file(store: ModelStore, clip: str) -> str:
    return str(store.clip_path(clip)) if clip in _CLIPS else clip
