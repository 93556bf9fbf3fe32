"""What the picture pipelines share: everything but the meaning of the network's outputs.

A pipeline of your own needs only a :class:`Reader` when its network takes one picture per item::

    def build(manifest, resources):
        return PicturePipeline(manifest, resources, MyReader())
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any, Literal, NamedTuple, Protocol, TypeVar

import msgspec
import numpy as np
from numpy.typing import NDArray

from engine.errors import InvalidInput, StartupError
from engine.manifest import InputSpec, Manifest
from engine.onnx.pixels import NetworkInput, check_picture_input
from engine.pipeline import OnnxSession, Output, Resources
from pipelines import annotate, images
from pipelines.answers import Answer
from pipelines.boxes import Placement

Probability = Annotated[float, msgspec.Meta(gt=0.0, lt=1.0)]
Outputs = tuple[NDArray[Any], ...]
T = TypeVar("T")


class Reader(Protocol):
    """Gives one item's outputs their meaning. Called from several threads: keep no state."""

    @property
    def finds_regions(self) -> bool:
        """Whether the answers have boxes, so that there is something to blur."""

    def read(self, outputs: Sequence[NDArray[Any]], placement: Placement) -> Answer:
        """``outputs`` are in the network's order and without the batch axis.

        Raises:
            ValueError: the outputs have the wrong shapes; noticed at warm-up.
        """


class ItemOptions(msgspec.Struct, frozen=True):
    """What a frame may ask for; unknown keys are ignored, unknown values are not."""

    annotate: Literal["boxes", "blur"] | None = None


class Prepared(NamedTuple):
    """One item on its way: ``fitted``, the picture at the size of the network's input, uint8
    ``[H, W, 3]``, and ``canvas``, at the size of its annotated frame, only if there will be one."""

    fitted: images.Picture
    placement: Placement
    canvas: images.Picture | None
    options: ItemOptions


_NO_OPTIONS = ItemOptions()


class PicturePipeline:
    """Encoded picture in, JSON out; implements ``engine.pipeline.Pipeline``.

    Immutable after construction, so ``prepare`` and ``interpret`` may run on any threads. A model
    with a fixed batch size gets its batches in pieces of that size, the last filled up in black.
    """

    def __init__(self, manifest: Manifest, resources: Resources, reader: Reader) -> None:
        """Raises StartupError, naming what to change, when manifest and network do not fit."""
        if manifest.input is None:
            raise StartupError(f"model {manifest.name!r}: needs [input] with width and height")
        if "model" not in manifest.files:
            raise StartupError(f"model {manifest.name!r}: needs files.model, an ONNX file")
        self._name = manifest.name
        self._spec = manifest.input
        self._reader = reader
        self._session = resources.open_session(Path(manifest.files["model"]), manifest.input)
        if not self._session.takes_pixels:
            _check_network(self._session, self._spec, manifest.name)
        self._session.allow_padding()
        self._input_name = self._session.input_names[0]
        batch_axis = self._session.input_shapes[0][0]
        self._fixed_batch = batch_axis if isinstance(batch_axis, int) else None

    def warm_up(self, batch_size: int) -> None:
        """Raises StartupError when the network's outputs are not what its kind promises."""
        item = self._blank()
        try:
            for outputs in self.run([item] * batch_size):
                self._reader.read(outputs, item.placement)
        except (ValueError, InvalidInput) as error:
            raise StartupError(f"model {self._name!r}: {error}") from error

    def prepare(self, payload: memoryview, meta: bytes, options: bytes) -> Prepared:
        wanted = _decode_options(options)
        if wanted.annotate == "blur" and not self._reader.finds_regions:
            # An untouched picture would be mistaken for an anonymous one.
            raise InvalidInput(f"model {self._name!r} finds no regions that could be blurred")
        picture = images.decode(payload)
        fitted, placement = images.fit(picture, self._spec)
        canvas = annotate.shrink(picture) if wanted.annotate else None
        return Prepared(fitted, placement, canvas, wanted)

    def run(self, batch: Sequence[Prepared]) -> list[Outputs]:
        size = self._fixed_batch or max(1, len(batch))
        answers: list[Outputs] = []
        for start in range(0, len(batch), size):
            answers += self._run_piece([item.fitted for item in batch[start : start + size]])
        return answers

    def interpret(self, prepared: Prepared, raw: Outputs, options: bytes) -> Output:
        answer = self._reader.read(raw, prepared.placement)
        data = msgspec.json.encode(answer)
        if prepared.canvas is None or prepared.options.annotate is None:
            return Output(data=data)
        attachment = annotate.annotate(prepared.canvas, answer, prepared.options.annotate)
        return Output(data=data, attachments=(attachment,))

    def _run_piece(self, pictures: list[images.Picture]) -> list[Outputs]:
        missing = (self._fixed_batch or 0) - len(pictures)
        if missing > 0:
            pictures = pictures + [np.zeros_like(pictures[0])] * missing
        if self._session.takes_pixels:
            inputs = self._session.stack(pictures)
        else:
            inputs = images.to_tensor(pictures, self._spec)
        results = self._session.run({self._input_name: inputs})
        outputs = [results[name] for name in self._session.output_names]
        for name, output in zip(self._session.output_names, outputs, strict=True):
            if output.shape[:1] != inputs.shape[:1]:
                raise ValueError(f"output {name!r} has shape {output.shape}, not one row per item")
        wanted = len(pictures) - max(0, missing)
        return [tuple(output[row] for output in outputs) for row in range(wanted)]

    def _blank(self) -> Prepared:
        spec = self._spec
        placement = Placement(width=spec.width, height=spec.height, scale_x=1.0, scale_y=1.0)
        fitted = np.zeros((spec.height, spec.width, 3), dtype=np.uint8)
        return Prepared(fitted, placement, None, _NO_OPTIONS)


def read_options(manifest: Manifest, options_type: type[T]) -> T:
    """The manifest's options as ``options_type``; raises StartupError naming the option."""
    try:
        return msgspec.convert(manifest.options, options_type)
    except msgspec.ValidationError as error:
        raise StartupError(f"model {manifest.name!r}: options: {error}") from None


def _decode_options(options: bytes) -> ItemOptions:
    if not options:
        return _NO_OPTIONS
    try:
        return msgspec.json.decode(options, type=ItemOptions)
    except msgspec.DecodeError as error:
        raise InvalidInput(f"options: {error}") from None


def _check_network(session: OnnxSession, spec: InputSpec, name: str) -> None:
    inputs = map(NetworkInput, session.input_names, session.input_shapes, session.input_dtypes)
    check_picture_input(tuple(inputs), spec, f"model {name!r}")
