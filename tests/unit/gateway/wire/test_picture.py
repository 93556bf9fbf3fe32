"""The header parser against real encoders, cut at every byte."""

from __future__ import annotations

import cv2
import numpy as np
import pytest

from gateway.wire.picture import PictureError, UnknownCodec, read_picture_header

pytestmark = pytest.mark.unit

ENCODINGS = {
    "jpeg": (".jpg", []),
    "progressive jpeg": (".jpg", [cv2.IMWRITE_JPEG_PROGRESSIVE, 1]),
    "png": (".png", []),
    "webp": (".webp", [cv2.IMWRITE_WEBP_QUALITY, 80]),
    "lossless webp": (".webp", [cv2.IMWRITE_WEBP_QUALITY, 101]),
}


def encoded(name: str, width: int, height: int) -> bytes:
    extension, parameters = ENCODINGS[name]
    pixels = np.random.default_rng(1).integers(0, 256, (height, width, 3), dtype=np.uint8)
    done, data = cv2.imencode(extension, pixels, parameters)
    assert done
    return data.tobytes()


@pytest.mark.parametrize("name", ENCODINGS)
def test_real_picture_has_the_size_it_was_encoded_with(name: str) -> None:
    for width, height in ((1, 1), (53, 37), (640, 3)):
        header = read_picture_header(memoryview(encoded(name, width, height)))
        assert (header.width, header.height, header.components) == (width, height, 3)
        assert header.pixels == width * height
        assert header.progressive == (name == "progressive jpeg")
        assert name.endswith(header.codec)


@pytest.mark.parametrize("name", ENCODINGS)
def test_picture_cut_anywhere_is_read_or_refused(name: str) -> None:
    data = encoded(name, 53, 37)
    whole = read_picture_header(data)
    for length in range(min(len(data), 800)):
        try:
            header = read_picture_header(data[:length])
        except PictureError:
            continue
        assert header == whole


def test_unknown_codec_is_a_kind_of_picture_error() -> None:
    with pytest.raises(UnknownCodec, match="does not begin"):
        read_picture_header(b"GIF89a")
    assert issubclass(UnknownCodec, PictureError)
