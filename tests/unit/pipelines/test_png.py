from __future__ import annotations

import struct
import zlib

import cv2
import numpy as np
import pytest

from engine.errors import InvalidInput
from pipelines.images import decode
from pipelines.png import MAX_UNCHECKED_BYTES, is_overfull
from tests.fakes.pictures import encode, noise

pytestmark = pytest.mark.unit


def chunk(kind: bytes, body: bytes) -> bytes:
    return struct.pack(">I", len(body)) + kind + body + struct.pack(">I", zlib.crc32(kind + body))


def png(width: int, height: int, coded: bytes) -> bytes:
    header = chunk(b"IHDR", struct.pack(">IIBBBBB", width, height, 8, 2, 0, 0, 0))
    pieces = (coded[start : start + 8192] for start in range(0, len(coded), 8192))
    body = b"".join(chunk(b"IDAT", piece) for piece in pieces)
    return b"\x89PNG\r\n\x1a\n" + header + body + chunk(b"IEND", b"")


def test_more_data_than_pixels_is_refused() -> None:
    data = png(640, 480, zlib.compress(noise(800, 600).tobytes() + bytes(50_000_000), 1))
    assert len(data) > MAX_UNCHECKED_BYTES
    with pytest.raises(InvalidInput, match="more data than pixels"):
        decode(memoryview(data))


@pytest.mark.parametrize("dtype", [np.uint8, np.uint16])
@pytest.mark.parametrize("channels", [1, 3, 4])
def test_pictures_of_every_depth_pass(dtype: type, channels: int) -> None:
    generator = np.random.default_rng(0)
    top = np.iinfo(dtype).max
    picture = generator.integers(0, top, (1100, 1000, channels), dtype=dtype, endpoint=True)
    data = encode(picture, ".png")
    assert len(data) > MAX_UNCHECKED_BYTES
    assert not is_overfull(memoryview(data))


def test_a_cut_or_damaged_picture_is_left_to_the_decoder() -> None:
    data = encode(noise(800, 800), ".png")
    assert len(data) > MAX_UNCHECKED_BYTES
    assert not is_overfull(memoryview(data[: MAX_UNCHECKED_BYTES + 5]))
    assert not is_overfull(memoryview(data[:100_000] + bytes(100) + data[100_100:]))


def test_a_large_picture_is_decoded_as_before() -> None:
    picture = noise(900, 700)
    data = encode(picture, ".png")
    assert np.array_equal(decode(memoryview(data)), picture)
    assert cv2.imdecode(np.frombuffer(data, np.uint8), cv2.IMREAD_COLOR) is not None
