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
from rich.text import Text

from gateway.commands.ask_gateway import ApiKey
from gateway.commands.exits import CommandError, ExitCode
from gateway.commands.help_text import HelpfulCommand, HelpfulGroup
from gateway.commands.quantize import quantize_model
from gateway.commands.reload import list_versions, reload_model, versions_of

if TYPE_CHECKING:
    from engine.manifest import InputSpec, Manifest
    from engine.models.sources import ProgressCallback
    from engine.models.store import ModelStore, StoreItem

app = typer.Typer(
    cls=HelpfulGroup,
    no_args_is_help=True,
    rich_markup_mode="rich",
    help="List, pull, describe, quantize and reload models; list and pull clips.",
)
app.command("quantize", cls=HelpfulCommand)(quantize_model)
app.command("reload", cls=HelpfulCommand)(reload_model)
app.command("versions", cls=HelpfulCommand)(list_versions)

_CLIP = "clip"


@app.command("list", cls=HelpfulCommand)
def list_models() -> None:
    """List the models and clips that can be pulled, and which are here already."""
    from engine.models.store import ModelStore

    store = ModelStore()
    table = Table(box=None)
    for heading in ("name", "kind", "here", "download"):
        table.add_column(heading, no_wrap=True)
    table.add_column("description")
    for item in store.list():
        here = "no" if item.path is None else "yes"
        table.add_row(item.name, item.kind, here, _megabytes(item), item.description)
    console = Console()
    console.print(table)
    console.print(f"\ncache: {store.home}", soft_wrap=True)


@app.command("pull", cls=HelpfulCommand)
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
    for name in wanted:  # before anything is downloaded
        _find(store, name)
    console = Console()
    pull_with_progress(store, wanted, Console(stderr=True))
    for name in wanted:
        console.print(f"{name}: ready", highlight=False)


@app.command("info", cls=HelpfulCommand)
def show_model(
    model: Annotated[str, typer.Argument(help="A name from `models list`, or a model.onnx file.")],
    url: Annotated[
        str | None, typer.Option(help="A gateway that serves it: show its versions there, too.")
    ] = None,
    api_key: ApiKey = None,
) -> None:
    """Show what a model or clip is: licence, files, pipeline, input, labels, options.

    Ends with 2 when the file cannot be served: it or its description is wrong.

    [bold]Examples[/bold]

      clawstream models info centerface
      clawstream models info ./yolov8n.onnx
      clawstream models info centerface --url ws://127.0.0.1:8400
    """
    from engine.models.store import ModelStore

    store = ModelStore()
    item = _catalogued(store, model)
    console = Console(soft_wrap=True, highlight=False)
    if item is None:
        rows = _manifest_rows(store.resolve(model))
    elif item.path is None or item.kind == _CLIP:
        rows = _item_rows(item)
    else:
        # What the catalogue says now, not what it said when the model was pulled.
        rows = _manifest_rows(store.resolve(model)) | {"description": item.description}
    if item is None or item.kind != _CLIP:
        rows["versions here"] = _describe_versions(store, model)
    if url is not None:
        for each in versions_of(model, url, api_key):
            reason = f": {each['reason']}" if each["reason"] else ""
            rows[f"version {each['version']}"] = f"{each['role']}{reason}"
    for key, value in rows.items():
        if value:
            console.print(Text.assemble((key, "bold"), ": ", value))


def pull_with_progress(store: ModelStore, names: Iterable[str], console: Console) -> None:
    """Pull models and clips one after the other, each with a bar, or a line per stage if
    ``console`` is no terminal; silent for what is there."""
    kinds = {item.name: item.kind for item in store.list()}
    for name in names:
        pull = store.pull_clip if kinds.get(name) == _CLIP else store.pull
        show = _download_bar if console.is_terminal else _download_lines
        with show(name, console) as progress:
            pull(name, progress)


@contextmanager
def _download_lines(name: str, console: Console) -> Iterator[ProgressCallback]:
    shown = ""

    def on_progress(done_bytes: int, total_bytes: int | None, stage: str) -> None:
        nonlocal shown
        if stage != shown:
            shown = stage
            console.print(f"{name}: {stage}", highlight=False, markup=False, soft_wrap=True)

    yield on_progress


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
    task = bar.add_task("", name=name, total=None)

    def on_progress(done_bytes: int, total_bytes: int | None, stage: str) -> None:
        # Started here: what is in the cache already shows no bar.
        bar.start()
        bar.update(task, completed=done_bytes, total=total_bytes, description=stage)

    try:
        yield on_progress
    finally:
        if bar.live.is_started:
            bar.stop()


def _catalogued(store: ModelStore, name: str) -> StoreItem | None:
    """The catalogue's entry, or None for a file; raises CommandError when it is neither."""
    from engine.models.catalog import file_hint
    from engine.models.store import is_file_reference

    return None if is_file_reference(name) else _find(store, name, file_hint(name))


def _find(store: ModelStore, name: str, hint: str = "") -> StoreItem:
    """The catalogue's entry; raises CommandError, with ``hint``, when there is none."""
    items = {item.name: item for item in store.list()}
    if name not in items:
        known = ", ".join(sorted(items))
        text = f"no model or clip named {name!r} in the catalogue, which has: {known}{hint}"
        raise CommandError(ExitCode.MISSING, text)
    return items[name]


def _item_rows(item: StoreItem) -> dict[str, str]:
    missing = f"not here ({_megabytes(item)}); get it with `clawstream models pull {item.name}`"
    return {
        "name": item.name,
        "description": item.description,
        "licence": item.licence,
        "kind": item.kind,
        "file": missing if item.path is None else str(item.path),
    }


def _manifest_rows(manifest: Manifest) -> dict[str, str]:
    from gateway.session.options import TEXT_KINDS

    return {
        "name": f"{manifest.name} version {manifest.version}",
        "description": manifest.description,
        "licence": manifest.licence or "not stated",
        "kind": manifest.kind,
        "pipeline": "" if manifest.kind in TEXT_KINDS else manifest.pipeline,
        "input": _describe_input(manifest.input),
        "labels": _describe_labels(manifest.labels),
        "options": ", ".join(f"{key} = {value}" for key, value in manifest.options.items()),
        **manifest.files,
    }


def _describe_versions(store: ModelStore, model: str) -> str:
    """Of a folder with numbered versions; other models have but the one."""
    from engine.models.errors import StoreError

    try:
        return ", ".join(store.repository(model, model).versions())
    except StoreError:
        return ""  # not pulled, and said so above


def _describe_input(spec: InputSpec | None) -> str:
    if spec is None:
        return ""
    return f"{spec.width}x{spec.height}, {spec.fit}, mean {spec.mean}, scale {spec.scale}"


def _describe_labels(labels: tuple[str, ...]) -> str:
    shown = ", ".join(labels[:5])
    return f"{len(labels)}: {shown}, …" if len(labels) > 5 else shown


def _megabytes(item: StoreItem) -> str:
    return f"{item.download_bytes / 1e6:.1f} MB"
