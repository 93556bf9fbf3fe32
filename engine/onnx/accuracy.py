"""How far the outputs of a network in lower precision are from the original's."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from engine.errors import StartupError
from engine.pipeline import Arrays, OnnxSession

# Each of fp16's roundings is 0.05 %; a sound network of fifty layers stays under this.
MAX_ERROR = 0.01
_SMALLEST = 1e-12


def relative_errors(
    originals: Sequence[Mapping[str, NDArray[Any]]], variants: Sequence[Mapping[str, NDArray[Any]]]
) -> dict[str, float]:
    """By output name, over all items: the length of the difference over that of the original.

    Outputs are paired by position, since a tool may rename them. Raises ``ValueError`` when they
    differ in shape.
    """
    errors: dict[str, float] = {}
    for position, name in enumerate(originals[0]):
        ours = np.stack([_flat(each, position) for each in originals])
        theirs = np.stack([_flat(each, position) for each in variants])
        if ours.shape != theirs.shape:
            raise ValueError(f"output {name!r} has {theirs.shape[1]} numbers, not {ours.shape[1]}")
        errors[name] = float(
            np.linalg.norm(theirs - ours) / max(_SMALLEST, float(np.linalg.norm(ours)))
        )
    return errors


def check_accuracy(
    variant: OnnxSession, original: OnnxSession, label: str, max_error: float = MAX_ERROR
) -> dict[str, float]:
    """Compare both on made-up inputs of one row, and on nothing but zeros, as warm-up uses.

    Returns the errors by output name.

    Raises:
        StartupError: an output is further off than ``max_error``, or of another shape.
    """
    inputs = list(_samples(original))
    originals = [original.run(each) for each in inputs]
    variants = [variant.run(each) for each in inputs]
    try:
        errors = relative_errors(originals, variants)
    except ValueError as mismatch:
        raise StartupError(f"{label}: outputs differ in shape from fp32: {mismatch}") from mismatch
    for name, error in errors.items():
        if not (math.isfinite(error) and error <= max_error):  # NaN where fp16 overflows
            raise StartupError(
                f"{label}: output {name!r} is {100 * error:.3g} % off fp32 on made-up inputs, "
                f"{100 * max_error:g} % is allowed: serve it in fp32 (tensorrt_fp16 = false)"
            )
    return errors


def _samples(session: OnnxSession) -> Iterator[Arrays]:
    random = np.random.default_rng(1)
    declared = list(
        zip(session.input_names, session.input_shapes, session.input_dtypes, strict=True)
    )
    shapes = {
        name: tuple(size if isinstance(size, int) else 1 for size in shape)
        for name, shape, _ in declared
    }
    for _ in range(2):
        yield {name: _numbers(random, shapes[name], dtype) for name, _, dtype in declared}
    yield {name: np.zeros(shapes[name], dtype) for name, _, dtype in declared}


def _numbers(
    random: np.random.Generator, shape: tuple[int, ...], dtype: np.dtype[Any]
) -> NDArray[Any]:
    if dtype == np.uint8:  # pixels
        return random.integers(0, 256, shape, np.uint8)
    # 0 and 1 are valid as indexes, masks and measures alike.
    return np.asarray(
        random.random(shape) if dtype.kind == "f" else random.integers(0, 2, shape)
    ).astype(dtype)


def _flat(outputs: Mapping[str, NDArray[Any]], position: int) -> NDArray[np.float64]:
    return np.asarray(list(outputs.values())[position], dtype=np.float64).reshape(-1)
