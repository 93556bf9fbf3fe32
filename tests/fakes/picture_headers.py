"""The first bytes of pictures that claim a size; nothing follows."""

from __future__ import annotations

import struct


def jpeg_header(width: int, height: int) -> bytes:
    """SOI, a baseline frame header of three components, EOI."""
    components = bytes((1, 0x22, 0, 2, 0x11, 1, 3, 0x11, 1))
    frame = struct.pack(">HBHHB", 17, 8, height, width, 3) + components
    return b"\xff\xd8\xff\xc0" + frame + b"\xff\xd9"
