"""The pipeline for raw tensors: ``engine.onnx.tensors:build``.

An item is the network's inputs in the format of :mod:`engine.tensors`; its answer is the outputs
in the same format, as an attachment. Each item carries its own leading axis (``n`` rows). Items
that fit together are joined along it, run as one, and split again; but only for a network that
treats rows one by one, which is tried out at the start, since a free first dimension may as well
be time. Networks that do not, or that fix their first dimension, run item by item. So the company
an item is in never changes its answer.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from engine.errors import InvalidInput, StartupError
from engine.manifest import Manifest
from engine.onnx.session import Shape, check_inputs
from engine.pipeline import OnnxSession, Output, Resources
from engine.tensors import UNNAMED, pack, unpack
from engine.types import Attachment, AttachmentKind

logger = logging.getLogger(__name__)

Tensors = dict[str, NDArray[Any]]

# Sizes to try for free dimensions beyond the first: pictures want multiples of 32, sequences and
# features usually take anything.
FREE_SIZES = (64, 8, 1)
PROBE_RTOL = 1e-3  # threads and blocking change the last bits of a sum; mixing rows changes more


class _Session(OnnxSession, Protocol):
    @property
    def output_shapes(self) -> tuple[Shape, ...]: ...


class TensorPipeline:
    """Tensors in, tensors out, over one network."""

    def __init__(self, session: OnnxSession) -> None:
        self._session = session
        self._example = find_example(session)
        self._joins = self._example is not None and rows_are_independent(session, self._example)
        if self._joins:
            session.allow_padding()

    @property
    def joins(self) -> bool:
        """Whether items are joined into one run."""
        return self._joins

    def warm_up(self, batch_size: int) -> None:
        """Without an input that could be made up, the first item pays for the first run."""
        if self._example is not None:
            self.run([self._example] * batch_size)

    def prepare(self, payload: memoryview, meta: bytes, options: bytes) -> Tensors:
        session = self._session
        inputs = {name: array.copy() for name, array in unpack(meta, payload).items()}
        if list(inputs) == [UNNAMED] and len(session.input_names) == 1:
            inputs = {session.input_names[0]: inputs[UNNAMED]}
        check_inputs(inputs, session.input_names, session.input_shapes, session.input_dtypes)
        if self._joins and len({array.shape[0] for array in inputs.values()}) > 1:
            raise InvalidInput("the inputs have different numbers of rows (first dimensions)")
        return inputs

    def run(self, batch: Sequence[Tensors]) -> list[Tensors]:
        answers: list[Tensors] = [{} for _ in batch]
        for group in self._groups(batch):
            for index, answer in zip(
                group, self._run_group([batch[i] for i in group]), strict=True
            ):
                answers[index] = answer
        return answers

    def interpret(self, prepared: Tensors, raw: Tensors, options: bytes) -> Output:
        packed = pack(raw)
        attachment = Attachment(
            kind=AttachmentKind.TENSORS, meta=packed.meta, payload=packed.payload
        )
        return Output(data=packed.meta, attachments=(attachment,))

    def _groups(self, batch: Sequence[Tensors]) -> list[list[int]]:
        """Positions of the items that run together: those of one shape, the first axis apart."""
        groups: dict[Any, list[int]] = {}
        for index, inputs in enumerate(batch):
            shapes = tuple((name, inputs[name].shape[1:]) for name in sorted(inputs))
            groups.setdefault(shapes if self._joins else index, []).append(index)
        return list(groups.values())

    def _run_group(self, items: Sequence[Tensors]) -> list[Tensors]:
        if len(items) == 1:
            return [self._session.run(items[0])]
        outputs = self._session.run(join(items))
        return split(outputs, [num_rows(item) for item in items])


def build(manifest: Manifest, resources: Resources) -> TensorPipeline:
    """The factory that manifests name; needs ``files = {"model": path}``."""
    if "model" not in manifest.files:
        raise StartupError(f"model {manifest.name}: its manifest names no file 'model'")
    return TensorPipeline(resources.open_session(Path(manifest.files["model"])))


def num_rows(tensors: Tensors) -> int:
    """Length of the leading axis that all of an item's tensors share."""
    return int(next(iter(tensors.values())).shape[0])


def join(items: Sequence[Tensors]) -> Tensors:
    """Concatenate along the first axis, name by name."""
    return {name: np.concatenate([item[name] for item in items]) for name in items[0]}


def split(outputs: Tensors, rows: Sequence[int]) -> list[Tensors]:
    """Undo ``join`` on a network's outputs; raises ``ValueError`` if they have other rows."""
    for name, array in outputs.items():
        if array.ndim == 0 or array.shape[0] != sum(rows):
            raise ValueError(f"output {name!r} of shape {array.shape} has not {sum(rows)} rows")
    ends = np.cumsum(rows)
    return [
        {name: array[end - count : end] for name, array in outputs.items()}
        for count, end in zip(rows, ends, strict=True)
    ]


def find_example(session: OnnxSession) -> Tensors | None:
    """One made-up row that the network accepts, or None."""
    for size in FREE_SIZES:
        example = make_up(session, size, seed=1)
        try:
            session.run(example)
        except Exception as error:  # noqa: BLE001 - whatever the network says, try the next size
            logger.info("free dimensions of %d do not fit: %s", size, error)
        else:
            return example
    logger.warning("no input could be made up: not warmed up, and items run one by one")
    return None


def make_up(session: OnnxSession, free_size: int, seed: int) -> Tensors:
    """One row of small random numbers per input; a fixed first dimension is kept."""
    random = np.random.default_rng(seed)
    tensors: Tensors = {}
    for name, shape, dtype in zip(
        session.input_names, session.input_shapes, session.input_dtypes, strict=True
    ):
        sizes = [size if isinstance(size, int) else free_size for size in shape]
        if sizes and not isinstance(shape[0], int):
            sizes[0] = 1
        # 0 and 1 are valid as indexes, masks and measures alike.
        numbers = random.random(sizes) if dtype.kind == "f" else random.integers(0, 2, sizes)
        tensors[name] = np.asarray(numbers).astype(dtype)
    return tensors


def rows_are_independent(session: OnnxSession, example: Tensors) -> bool:
    """Whether rows give the same answers together as alone, to within rounding."""
    if not all(shape and not isinstance(shape[0], int) for shape in session.input_shapes):
        return False
    rows = [example, *(_vary(example, seed) for seed in (2, 3))]
    try:
        alone = [session.run(row) for row in rows]
        together = split(session.run(join(rows)), [1] * len(rows))
    except Exception as error:  # noqa: BLE001 - a network that cannot be joined may say so anyhow
        logger.warning("items run one by one, joined rows fail: %s", error)
        return False
    same = all(
        _is_close(one[name], other[name])
        for one, other in zip(alone, together, strict=True)
        for name in one
    )
    if not same:
        logger.warning("items run one by one: joining rows changes this network's answers")
    return same


def _vary(example: Tensors, seed: int) -> Tensors:
    random = np.random.default_rng(seed)
    return {
        name: array + random.random(array.shape).astype(array.dtype)
        if array.dtype.kind == "f"
        else random.integers(0, 2, array.shape).astype(array.dtype)
        for name, array in example.items()
    }


def _is_close(one: NDArray[Any], other: NDArray[Any]) -> bool:
    if one.shape != other.shape:
        return False
    if one.dtype.kind != "f":
        return bool(np.array_equal(one, other))
    scale = float(np.max(np.abs(one), initial=0.0))
    return bool(np.allclose(one, other, rtol=PROBE_RTOL, atol=PROBE_RTOL * scale))
