"""Tensors as bytes: the payload of raw-tensor items and of results of kind ``tensors``.

The payload is the arrays one after another in C order, little endian, each padded with zeros to a
multiple of 8 bytes; ``meta`` is JSON ``{"tensors": [{"name", "dtype", "shape"}]}`` in that order.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any, NamedTuple

import msgspec
import numpy as np
from numpy.typing import NDArray

from engine.errors import InvalidInput

ALIGNMENT = 8
MAX_TENSORS = 64
UNNAMED = ""  # name of the only tensor, for callers who do not know what the network calls it
MAX_DIMENSIONS = 16
DTYPES: dict[str, np.dtype[Any]] = {
    name: np.dtype(name).newbyteorder("<")
    for name in (
        "bool",
        *("int8", "int16", "int32", "int64"),
        *("uint8", "uint16", "uint32", "uint64"),
        *("float16", "float32", "float64"),
    )
}


class TensorSpec(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """One array's name, dtype (as numpy calls it) and shape."""

    name: str
    dtype: str
    shape: tuple[int, ...]

    @property
    def size_bytes(self) -> int:
        return math.prod(self.shape) * DTYPES[self.dtype].itemsize


class TensorsMeta(msgspec.Struct, frozen=True):
    """The JSON that goes with a payload."""

    tensors: tuple[TensorSpec, ...]


class Packed(NamedTuple):
    meta: bytes
    payload: bytes


def pack(arrays: Mapping[str, NDArray[Any]]) -> Packed:
    """Copy ``arrays`` into one payload.

    Raises:
        InvalidInput: more than ``MAX_TENSORS`` arrays, or one without a fixed-size number type.
    """
    specs, parts = [], []
    for name, array in arrays.items():
        if array.dtype.name not in DTYPES:
            raise InvalidInput(f"tensor {name!r} has unsupported dtype {array.dtype.name}")
        spec = TensorSpec(name, array.dtype.name, array.shape)
        specs.append(spec)
        parts += [array.astype(DTYPES[spec.dtype], order="C", copy=False).tobytes()]
        parts += [bytes(-spec.size_bytes % ALIGNMENT)]
    if len(specs) > MAX_TENSORS:
        raise InvalidInput(f"{len(specs)} tensors; at most {MAX_TENSORS} are allowed")
    return Packed(msgspec.json.encode(TensorsMeta(tuple(specs))), b"".join(parts))


def unpack(meta: bytes, payload: bytes | memoryview) -> dict[str, NDArray[Any]]:
    """Views into ``payload``, by name; nothing is copied.

    Raises:
        InvalidInput: malformed meta, unknown dtype, bad shape, or sizes that do not add up.
    """
    arrays: dict[str, NDArray[Any]] = {}
    offset = 0
    for spec in read_meta(meta):
        end = offset + spec.size_bytes
        if end > len(payload):
            raise InvalidInput(f"payload of {len(payload)} bytes ends inside tensor {spec.name!r}")
        arrays[spec.name] = _view(spec, payload, offset)
        offset = end + -end % ALIGNMENT
    if offset != len(payload):
        raise InvalidInput(f"payload has {len(payload)} bytes, its meta describes {offset}")
    return arrays


def read_meta(meta: bytes) -> tuple[TensorSpec, ...]:
    """Decode and check ``meta``; raises ``InvalidInput``."""
    try:
        specs = msgspec.json.decode(meta, type=TensorsMeta).tensors
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise InvalidInput(f"tensor meta: {error}") from None
    if not 1 <= len(specs) <= MAX_TENSORS:
        raise InvalidInput(f"{len(specs)} tensors; 1 to {MAX_TENSORS} are allowed")
    if len({spec.name for spec in specs}) != len(specs):
        raise InvalidInput("two tensors have the same name")
    for spec in specs:
        if spec.dtype not in DTYPES:
            raise InvalidInput(f"tensor {spec.name!r} has unsupported dtype {spec.dtype!r}")
        if len(spec.shape) > MAX_DIMENSIONS or any(size < 0 for size in spec.shape):
            raise InvalidInput(f"tensor {spec.name!r} has bad shape {list(spec.shape)}")
    return specs


def _view(spec: TensorSpec, payload: bytes | memoryview, offset: int) -> NDArray[Any]:
    dtype = DTYPES[spec.dtype]
    try:
        if 0 in spec.shape:
            return np.empty(spec.shape, dtype)
        return np.ndarray(spec.shape, dtype, payload, offset)
    except (ValueError, OverflowError):  # more elements than numpy can count
        raise InvalidInput(f"tensor {spec.name!r} has bad shape {list(spec.shape)}") from None
