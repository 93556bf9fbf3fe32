"""``clawstream models quantize``: a smaller variant of a model, and what it costs in accuracy."""

from __future__ import annotations

import asyncio
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.console import Console

from gateway.commands.exits import CommandError, ExitCode

if TYPE_CHECKING:
    from engine.models.store import ModelStore
    from engine.onnx.quantize import Comparison

_CLIP_STEPS = 8  # of a clip every so manieth frame, while that gives enough
_MAX_FRAMES = 4096  # that are read


class Precision(StrEnum):
    """Which variant is made."""

    INT8 = "int8"
    FP16 = "fp16"


def quantize_model(
    model: Annotated[str, typer.Argument(help="A name from `models list`, or a model.onnx file.")],
    to: Annotated[Precision, typer.Option(help="The variant.")] = Precision.INT8,
    frames: Annotated[
        str,
        typer.Option(help="A clip, a folder of pictures, or a clip's name from `models list`."),
    ] = "face",
    calibrate: Annotated[
        int, typer.Option(min=1, max=1024, help="Frames that set the ranges of int8.")
    ] = 64,
    hold_out: Annotated[
        int, typer.Option("--hold-out", min=1, max=1024, help="Other frames, to compare on.")
    ] = 32,
    version: Annotated[
        str | None, typer.Option(help="Of a folder with numbered versions; default: the newest.")
    ] = None,
) -> None:
    """Make a smaller variant of a model, beside its file, and say what it costs.

    int8 is calibrated on frames like those that the model will see: give your own. The comparison
    is on frames that were not used for that, with both variants on one core.

    [bold]Examples[/bold]

      clawstream models quantize centerface
      clawstream models quantize models/helmets --frames site.mp4
      clawstream models quantize ./yolov8n.onnx --to fp16 --frames pictures/
    """
    import msgspec

    from engine.models.repository import variant_path
    from engine.models.store import ModelStore
    from engine.onnx import quantize

    store = ModelStore()
    manifest = store.repository(Path(model).stem, model).read(version)[-1][0]
    source = Path(manifest.files["model"])
    calibration, held_out = _read_frames(store, frames, calibrate, hold_out)
    console = Console(highlight=False, soft_wrap=True)
    target = variant_path(source, to.value)
    if to is Precision.INT8:
        console.print(f"calibrating on {len(calibration)} frames of {frames} …")
        samples = quantize.record_inputs(manifest, calibration, 1)
        quantize.quantize_int8(source, target, samples)
    else:
        quantize.convert_fp16(source, target)
    variant = msgspec.structs.replace(manifest, files={**manifest.files, "model": str(target)})
    compared = quantize.compare(manifest, variant, held_out, 1)
    _report(console, target, source, compared)
    console.print(f'serve it with `variants = ["fp32", "{to.value}"]`, or "{to.value}" alone')


def _report(console: Console, target: Path, source: Path, compared: Comparison) -> None:
    from pipelines.agreement import compare_answers

    agreement = compare_answers(compared.answers)
    console.print(f"written: {target}")
    sizes = target.stat().st_size, source.stat().st_size
    console.print(f"size: {sizes[0] / 1e6:.1f} MB, {sizes[0] / sizes[1]:.0%} of the original's")
    console.print(f"on {len(compared.answers)} held-out frames:")
    console.print(f"  {agreement.measure}: {agreement.share:.1%}")
    for what, value in agreement.details.items():
        console.print(f"  {what}: {value:g}" if value == int(value) else f"  {what}: {value:.3f}")
    for name, error in compared.output_error.items():
        console.print(f"  relative error of output {name}: {error:.4f}")
    console.print(
        f"speed: {1000 * compared.variant_run_s:.2f} ms per frame instead of "
        f"{1000 * compared.original_run_s:.2f} ms, {compared.speed_ratio:.2f} times as fast"
    )


def _read_frames(
    store: ModelStore, spec: str, calibrate: int, hold_out: int
) -> tuple[list[bytes], list[bytes]]:
    """Frames spread over the source, in turns for either purpose, so that both see all of it."""
    from gateway.client import SourceError

    names = {item.name for item in store.list() if item.kind == "clip"}
    path = store.clip_path(spec) if spec in names else Path(spec).expanduser()
    wanted = calibrate + hold_out
    try:
        read = asyncio.run(_read_source(path, min(_MAX_FRAMES, _CLIP_STEPS * wanted)))
    except SourceError as error:
        raise CommandError(ExitCode.MISSING, str(error)) from error
    if len(read) < 2:
        raise CommandError(ExitCode.USAGE, f"--frames: {spec} has fewer than two frames")
    chosen = read[:: max(1, len(read) // wanted)][:wanted]
    every = max(2, round(wanted / hold_out))
    held_out = chosen[1::every][:hold_out]
    calibration = [frame for index, frame in enumerate(chosen) if index % every != 1]
    return calibration[:calibrate], held_out


async def _read_source(path: Path, count: int) -> list[bytes]:
    from gateway.client import open_source

    source = open_source(path, realtime=False)
    pictures: list[bytes] = []
    async for frame in source:
        pictures.append(frame.jpeg)
        if len(pictures) >= count:
            source.stop()
    return pictures
