"""``clawstream models``: what there is, get it, look at it."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Annotated

import typer
from rich.console import Console
from rich.progress import (
    BarColumn,
    DownloadColumn,
    Progress,
    TextColumn,
    TransferSpeedColumn,
)
from rich.table import Table

from gateway.commands.exits import CommandError, ExitCode

if TYPE_CHECKING:
    from engine.models.sources import ProgressCallback
    from engine.models.store import ModelStore

app = typer.Typer(
    no_args_is_help=True, rich_markup_mode="rich", help="List, get and inspect models and clips."
)

_CLIP = "clip"


@app.command("list")
def list_models() -> None:
    """List the models and clips that can be pulled, and which are here already."""
    from engine.models.store import ModelStore

    store = ModelStore()
    table = Table("name", "kind", "here", "download", "licence", "description", box=None)
    for item in store.list():
        here = "no" if item.path is None else "yes"
        size = f"{item.download_bytes / 1e6:.1f} MB"
        table.add_row(item.name, item.kind, here, size, item.licence, item.description)
    console = Console()
    console.print(table)
    console.print(f"\ncache: {store.home}", soft_wrap=True)


@app.command("pull")
def pull_models(
    names: Annotated[
        list[str] | None, typer.Argument(help="Models or clips, as `models list` names them.")
    ] = None,
    everything: Annotated[bool, typer.Option("--all", help="Everything in the list.")] = False,
) -> None:
    """Download models or clips into the cache, check and import them.

    What is there already is not downloaded again, so a full cache works offline.

    [bold]Examples[/bold]

      clawstream models pull centerface
      clawstream models pull efficientnet-lite0 face street
      CLAWSTREAM_HOME=/srv/models clawstream models pull --all
    """
    from engine.models.store import ModelStore

    store = ModelStore()
    wanted = [item.name for item in store.list()] if everything else names or []
    if not wanted:
        raise CommandError(ExitCode.USAGE, "name at least one model or clip, or give --all")
    console = Console()
    pull_with_progress(store, wanted, Console(stderr=True))
    for name in wanted:
        console.print(f"{name}: ready", highlight=False)


@app.command("info")
def show_model(
    model: Annotated[str, typer.Argument(help="A name from `models list`, or a model.onnx file.")],
) -> None:
    """Show a model's manifest: pipeline, input, labels, options, licence, files.

    [bold]Examples[/bold]

      clawstream models info centerface
      clawstream models info ./yolov8n.onnx
    """
    from engine.models.store import ModelStore

    store = ModelStore()
    console = Console(soft_wrap=True)
    clips = {item.name: item for item in store.list() if item.kind == _CLIP}
    if clip := clips.get(model):
        console.print(f"{clip.name}: {clip.description}\nlicence: {clip.licence}")
        console.print(f"file: {store.clip_path(model)}")
        return
    manifest = store.resolve(model)
    console.print(f"[bold]{manifest.name}[/bold] version {manifest.version}")
    if manifest.description:
        console.print(manifest.description)
    rows = {
        "licence": manifest.licence or "not stated",
        "pipeline": manifest.pipeline,
        "kind": manifest.kind or "its own",
        "input": _describe_input(manifest.input),
        "labels": _describe_labels(manifest.labels),
        "options": ", ".join(f"{key} = {value}" for key, value in manifest.options.items()),
        **manifest.files,
    }
    for key, value in rows.items():
        console.print(f"{key}: {value or 'none'}", highlight=False)


def pull_with_progress(store: ModelStore, names: Iterable[str], console: Console) -> None:
    """Pull models and clips one after the other, each with a bar; silent for what is there."""
    kinds = {item.name: item.kind for item in store.list()}
    for name in names:
        pull = store.pull_clip if kinds.get(name) == _CLIP else store.pull
        with _download_bar(name, console) as progress:
            pull(name, progress)


@contextmanager
def _download_bar(name: str, console: Console) -> Iterator[ProgressCallback]:
    columns = (
        TextColumn("{task.fields[name]}"),
        BarColumn(),
        DownloadColumn(),
        TransferSpeedColumn(),
        TextColumn("{task.description}", style="dim"),
    )
    bar = Progress(*columns, console=console)
    task = bar.add_task("", name=name, total=None, visible=False)

    def on_progress(done_bytes: int, total_bytes: int | None, stage: str) -> None:
        bar.update(task, completed=done_bytes, total=total_bytes, description=stage, visible=True)

    with bar:
        yield on_progress


def _describe_input(spec: object) -> str:
    from engine.manifest import InputSpec

    if not isinstance(spec, InputSpec):
        return "tensors, as the network takes them"
    return f"{spec.width}x{spec.height}, {spec.fit}, mean {spec.mean}, scale {spec.scale}"


def _describe_labels(labels: tuple[str, ...]) -> str:
    shown = ", ".join(labels[:5])
    return f"{len(labels)}: {shown}, …" if len(labels) > 5 else shown
