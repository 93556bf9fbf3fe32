"""Whether a PNG unpacks to more than its pixels, which decoders notice only after doing it.

Deflate makes 1 MB of a thousand: 4 MB that stand for a small picture cost libpng 8 s. Below
``MAX_UNCHECKED_BYTES`` that is 2 s at worst; above, the picture data is unpacked here first, up
to where it is too much, which adds 60 ms to the 90 ms of a photograph of 1920x1080.
"""

from __future__ import annotations

import struct
import zlib

MAX_UNCHECKED_BYTES = 1 << 20
_PIECE_BYTES = 1 << 18
_HEADER = struct.Struct(">I4sII")  # length, kind, then width and height in the first chunk
_CHUNK = struct.Struct(">I4s")
_MAX_PIXEL_BYTES = 8
_MAX_ROWS = 2  # per row of the picture: interlaced pictures have nearly two, each with a filter


def is_overfull(data: memoryview) -> bool:
    """Whether the IDAT chunks unpack to more than a picture of the claimed size can have.

    ``data`` begins with the PNG signature. Whatever else is wrong is left to the decoder.
    """
    if len(data) <= MAX_UNCHECKED_BYTES:
        return False
    _, _, width, height = _HEADER.unpack_from(data, 8)
    room = width * height * _MAX_PIXEL_BYTES + height * _MAX_ROWS + 64
    unpacker = zlib.decompressobj()
    offset = 8
    while offset + _CHUNK.size <= len(data):
        length, kind = _CHUNK.unpack_from(data, offset)
        body = data[offset + 8 : offset + 8 + length]
        offset += 12 + length
        if kind == b"IDAT":
            room -= _unpacked_size(unpacker, body, room)
            if room < 0:
                return True
    return False


def _unpacked_size(unpacker: zlib._Decompress, body: bytes | memoryview, room: int) -> int:
    """Bytes that ``body`` unpacks to; stops a little beyond ``room``."""
    size = 0
    try:
        while len(body) and size <= room and not unpacker.eof:
            size += len(unpacker.decompress(body, _PIECE_BYTES))
            body = unpacker.unconsumed_tail
    except zlib.error:
        pass  # the decoder will say so
    return size
