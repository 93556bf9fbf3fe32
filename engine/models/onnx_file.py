"""Whether a file is a whole ONNX model, from its outermost fields and without the onnx package.

An ONNX file is one protobuf message, ``ModelProto``. Its fields say how long they are, so a text
file, another format and a half copied file all show without reading the weights.

Sources: onnx.proto3 (fields 1 and 7), Protocol Buffers "Encoding".
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import BinaryIO

_IR_VERSION = (1, 0)  # field number, wire type
_GRAPH = (7, 2)
_VARINT, _FIXED64, _LENGTH, _FIXED32 = 0, 1, 2, 5
_MAX_FIELDS = 65536
_MAX_VARINT_BYTES = 10


def check_onnx_file(path: Path) -> None:
    """Raises ValueError, saying what is wrong, and OSError when the file cannot be read.

    What the graph means is found out when it is loaded.
    """
    with path.open("rb") as file:
        size = os.fstat(file.fileno()).st_size
        found = set()
        for _ in range(_MAX_FIELDS):
            if file.tell() == size:
                break
            found.add(_skip_field(file, size))
    if not {_IR_VERSION, _GRAPH} <= found:
        raise ValueError("it is not an ONNX model: it has no graph")


def _skip_field(file: BinaryIO, size: int) -> tuple[int, int]:
    """Read one field's number and wire type and go behind it."""
    tag = _read_varint(file)
    number, wire_type = tag >> 3, tag & 7
    if wire_type == _VARINT:
        _read_varint(file)
        return number, wire_type
    lengths = {_FIXED64: 8, _FIXED32: 4}
    length = _read_varint(file) if wire_type == _LENGTH else lengths.get(wire_type)
    if number == 0 or length is None:
        raise ValueError("it is not an ONNX model")
    end = file.tell() + length
    if end > size:
        raise ValueError(f"it is not an ONNX model, or not all of it ({size} bytes)")
    file.seek(end)
    return number, wire_type


def _read_varint(file: BinaryIO) -> int:
    value = 0
    for index in range(_MAX_VARINT_BYTES):
        byte = file.read(1)
        if not byte:
            break
        value |= (byte[0] & 0x7F) << (7 * index)
        if byte[0] < 0x80:
            return value
    raise ValueError("it is not an ONNX model, or not all of it")
