"""Made-up pictures, encoded as clients would send them."""

from __future__ import annotations

import struct
from typing import Any, cast

import cv2
import numpy as np
from numpy.typing import NDArray


def gradient(width: int, height: int) -> NDArray[np.uint8]:
    """BGR; blue grows to the right, green grows downwards, red is 40: no two corners alike."""
    picture = np.empty((height, width, 3), dtype=np.uint8)
    picture[..., 0] = np.linspace(0, 255, width).astype(np.uint8)
    picture[..., 1] = np.linspace(0, 255, height).astype(np.uint8)[:, None]
    picture[..., 2] = 40
    return picture


def noise(width: int, height: int, seed: int = 0) -> NDArray[np.uint8]:
    """BGR; every pixel differs from its neighbours."""
    generator = np.random.default_rng(seed)
    return generator.integers(0, 256, (height, width, 3), dtype=np.uint8)


def encode(picture: NDArray[Any], extension: str = ".jpg") -> bytes:
    ok, data = cv2.imencode(extension, picture)
    assert ok
    return data.tobytes()


def decode(data: bytes) -> NDArray[np.uint8]:
    picture = cv2.imdecode(np.frombuffer(data, np.uint8), cv2.IMREAD_COLOR)
    assert picture is not None
    return cast("NDArray[np.uint8]", picture)


def with_exif_orientation(jpeg: bytes, orientation: int, thumbnail: bytes = b"") -> bytes:
    """Insert an EXIF segment (big endian TIFF, one entry), with ``thumbnail`` behind it."""
    entry = struct.pack(">HHIHH", 0x0112, 3, 1, orientation, 0)
    tiff = b"MM\x00\x2a" + struct.pack(">IH", 8, 1) + entry + struct.pack(">I", 0)
    body = b"Exif\x00\x00" + tiff + thumbnail
    return jpeg[:2] + b"\xff\xe1" + struct.pack(">H", len(body) + 2) + body + jpeg[2:]
