"""What the picture pipelines share: everything but the meaning of the network's outputs.

A pipeline of your own needs only a :class:`Reader` when its network takes one picture per item::

    def build(manifest, resources):
        return PicturePipeline(manifest, resources, MyReader())
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Literal, Protocol, TypeVar

import msgspec
import numpy as np
from numpy.typing import NDArray

from engine.errors import InvalidInput, StartupError
from engine.manifest import InputSpec, Manifest
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


@dataclass(frozen=True, slots=True)
class Prepared:
    """One item on its way: ``tensor [3, H, W]``, and ``canvas``, the picture at the size of its
    annotated frame, only if there will be one."""

    tensor: NDArray[np.float32]
    placement: Placement
    canvas: images.Picture | None
    options: ItemOptions


_NO_OPTIONS = ItemOptions()


class PicturePipeline:
    """Encoded picture in, JSON out; implements ``engine.pipeline.Pipeline``.

    Immutable after construction, so ``prepare`` and ``interpret`` may run on any threads. A model
    with a fixed batch size gets its batches in pieces of that size, the last one filled with zeros.
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
        self._session = resources.open_session(Path(manifest.files["model"]))
        _check_network(self._session, self._spec, manifest.name)
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
        tensor = images.to_tensor(fitted, self._spec)
        canvas = annotate.shrink(picture) if wanted.annotate else None
        return Prepared(tensor, placement, canvas, wanted)

    def run(self, batch: Sequence[Prepared]) -> list[Outputs]:
        size = self._fixed_batch or max(1, len(batch))
        answers: list[Outputs] = []
        for start in range(0, len(batch), size):
            answers += self._run_piece([item.tensor for item in batch[start : start + size]])
        return answers

    def interpret(self, prepared: Prepared, raw: Outputs, options: bytes) -> Output:
        answer = self._reader.read(raw, prepared.placement)
        data = msgspec.json.encode(answer)
        if prepared.canvas is None or prepared.options.annotate is None:
            return Output(data=data)
        attachment = annotate.annotate(prepared.canvas, answer, prepared.options.annotate)
        return Output(data=data, attachments=(attachment,))

    def _run_piece(self, tensors: list[NDArray[np.float32]]) -> list[Outputs]:
        missing = (self._fixed_batch or 0) - len(tensors)
        if missing > 0:
            tensors = tensors + [np.zeros_like(tensors[0])] * missing
        # One item needs no copy; stacking 320x256 costs 0.1 ms an item.
        inputs = tensors[0][None] if len(tensors) == 1 else np.stack(tensors)
        results = self._session.run({self._input_name: inputs})
        outputs = [results[name] for name in self._session.output_names]
        for name, output in zip(self._session.output_names, outputs, strict=True):
            if output.shape[:1] != inputs.shape[:1]:
                raise ValueError(f"output {name!r} has shape {output.shape}, not one row per item")
        wanted = len(tensors) - max(0, missing)
        return [tuple(output[row] for output in outputs) for row in range(wanted)]

    def _blank(self) -> Prepared:
        spec = self._spec
        placement = Placement(width=spec.width, height=spec.height, scale_x=1.0, scale_y=1.0)
        tensor = np.zeros((3, spec.height, spec.width), dtype=np.float32)
        return Prepared(tensor, placement, None, _NO_OPTIONS)


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
    """One float32 input ``[batch, 3, height, width]`` that takes ``spec``'s size."""
    if len(session.input_names) != 1:
        names = ", ".join(session.input_names)
        raise StartupError(f"model {name!r}: expected one input, the network has {names}")
    shape, dtype = session.input_shapes[0], session.input_dtypes[0]
    if dtype != np.float32:
        raise StartupError(f"model {name!r}: the network takes {dtype}, export it as float32")
    wanted = (3, spec.height, spec.width)
    if len(shape) != 4 or any(
        isinstance(has, int) and has != want for has, want in zip(shape[1:], wanted, strict=True)
    ):
        raise StartupError(
            f"model {name!r}: the network's input is {list(shape)}, "
            f"but [input] gives [batch, 3, {spec.height}, {spec.width}]"
        )
