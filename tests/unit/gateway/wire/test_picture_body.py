"""Bodies that real encoders write pass; those that are made to be expensive do not."""

from __future__ import annotations

import struct
import zlib
from fractions import Fraction

import av
import cv2
import numpy as np
import pytest

from gateway.wire.picture import PictureError, read_picture_header
from gateway.wire.picture_body import check_picture_body
from tests.fakes.jpeg_segments import repeated_scan, with_frame_size
from tests.fakes.pictures import noise

pytestmark = pytest.mark.unit

SIZES = [(1, 1), (7, 3), (8, 8), (17, 33), (640, 480), (1920, 1080), (3, 4000), (4096, 4096)]
SAMPLINGS = {
    "4:4:4": cv2.IMWRITE_JPEG_SAMPLING_FACTOR_444,
    "4:2:2": cv2.IMWRITE_JPEG_SAMPLING_FACTOR_422,
    "4:2:0": cv2.IMWRITE_JPEG_SAMPLING_FACTOR_420,
    "4:1:1": cv2.IMWRITE_JPEG_SAMPLING_FACTOR_411,
}


def check(data: bytes) -> None:
    check_picture_body(data, read_picture_header(data))


def jpeg(picture: np.ndarray, *options: int) -> bytes:
    done, data = cv2.imencode(".jpg", picture, list(options))
    assert done
    return data.tobytes()


def solid(width: int, height: int, *channels: int) -> np.ndarray:
    return np.full((height, width, *channels), 128, np.uint8)


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("sampling", SAMPLINGS.values(), ids=SAMPLINGS)
@pytest.mark.parametrize("optimised", [0, 1])
@pytest.mark.parametrize("progressive", [0, 1])
def test_solid_colour_passes(
    size: tuple[int, int], sampling: int, optimised: int, progressive: int
) -> None:
    options = [cv2.IMWRITE_JPEG_SAMPLING_FACTOR, sampling]
    options += [cv2.IMWRITE_JPEG_OPTIMIZE, optimised, cv2.IMWRITE_JPEG_PROGRESSIVE, progressive]
    check(jpeg(solid(*size, 3), *options))


def test_the_beginning_of_a_sequential_jpeg_decides() -> None:
    known = jpeg(noise(64, 48))
    beginning = check_picture_body(known, read_picture_header(known))
    assert beginning is not None
    assert len(beginning.data) < 700
    assert beginning.fits(jpeg(noise(64, 48, seed=1)))
    assert not beginning.fits(jpeg(noise(48, 64)))
    assert not beginning.fits(jpeg(noise(64, 48), cv2.IMWRITE_JPEG_QUALITY, 50))
    assert beginning.fits(known[: beginning.least_bytes])
    assert not beginning.fits(known[: beginning.least_bytes - 1])
    with pytest.raises(PictureError, match="truncated"):
        check(known[: beginning.least_bytes - 1])


def test_the_beginning_of_other_pictures_does_not_decide() -> None:
    progressive = jpeg(noise(64, 48), cv2.IMWRITE_JPEG_PROGRESSIVE, 1)
    plain = jpeg(noise(64, 48))
    with_profile = plain[:2] + b"\xff\xe2\x20\x02" + bytes(8192) + plain[2:]
    for each in (progressive, with_profile):
        assert check_picture_body(each, read_picture_header(each)) is None


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("progressive", [0, 1])
def test_solid_grey_passes(size: tuple[int, int], progressive: int) -> None:
    options = [cv2.IMWRITE_JPEG_OPTIMIZE, 1, cv2.IMWRITE_JPEG_PROGRESSIVE, progressive]
    check(jpeg(solid(*size), *options))


@pytest.mark.parametrize("size", [(64, 48), (176, 144), (1920, 1080)])
@pytest.mark.parametrize("pixel_format", ["yuvj420p", "yuvj422p", "yuvj444p"])
def test_another_encoder_passes(size: tuple[int, int], pixel_format: str) -> None:
    encoder = av.CodecContext.create("mjpeg", "w")
    encoder.width, encoder.height = size
    encoder.pix_fmt, encoder.time_base = pixel_format, Fraction(1, 25)
    frame = av.VideoFrame.from_ndarray(solid(*size, 3), format="bgr24")
    packets = [*encoder.encode(frame.reformat(format=pixel_format)), *encoder.encode(None)]
    for packet in packets:
        check(bytes(packet))


@pytest.mark.parametrize("options", [[cv2.IMWRITE_JPEG_RST_INTERVAL, 1], []])
def test_noise_restarts_and_what_follows_the_end_pass(options: list[int]) -> None:
    check(jpeg(noise(320, 256), *options) + noise(64, 64).tobytes())


@pytest.mark.parametrize("progressive", [0, 1])
def test_a_size_without_the_data_for_it_is_truncated(progressive: int) -> None:
    small = jpeg(solid(64, 48, 3), cv2.IMWRITE_JPEG_PROGRESSIVE, progressive)
    with pytest.raises(PictureError, match=r"truncated.*8192x4050"):
        check(with_frame_size(small, 8192, 4050))


def test_thousands_of_scans_are_refused() -> None:
    progressive = jpeg(solid(64, 48, 3), cv2.IMWRITE_JPEG_PROGRESSIVE, 1)
    check(repeated_scan(progressive, 50))
    with pytest.raises(PictureError, match="too many scans"):
        check(repeated_scan(progressive, 3000))


def test_large_pictures_may_have_fewer_scans() -> None:
    progressive = jpeg(solid(8192, 4050, 3), cv2.IMWRITE_JPEG_PROGRESSIVE, 1)
    check(progressive)
    with pytest.raises(PictureError, match="more than 32"):
        check(repeated_scan(progressive, 40))


def test_a_scan_cannot_be_hidden_behind_an_end_marker_in_a_comment() -> None:
    progressive = jpeg(solid(64, 48, 3), cv2.IMWRITE_JPEG_PROGRESSIVE, 1)
    comment = b"\xff\xfe\x00\x04\xff\xd9"
    with pytest.raises(PictureError, match="too many scans"):
        check(repeated_scan(progressive, 100, before=comment))


def test_scans_in_a_comment_are_not_counted() -> None:
    progressive = jpeg(solid(64, 48, 3), cv2.IMWRITE_JPEG_PROGRESSIVE, 1)
    body = b"\xff\xda" * 100
    comment = b"\xff\xfe" + struct.pack(">H", len(body) + 2) + body
    check(repeated_scan(progressive, 1, before=comment))


def test_sequential_scans_of_single_components_are_counted() -> None:
    picture = jpeg(solid(64, 48, 3))
    start = picture.index(b"\xff\xda")
    scan = b"\xff\xda\x00\x08\x01\x01\x00\x00\x3f\x00" + bytes(100)
    check(picture[:start] + scan * 3 + b"\xff\xd9")
    with pytest.raises(PictureError, match="too many scans"):
        check(picture[:start] + scan * 100 + b"\xff\xd9")


def test_fill_bytes_cost_one_pass() -> None:
    progressive = jpeg(solid(64, 48, 3), cv2.IMWRITE_JPEG_PROGRESSIVE, 1)
    check(progressive[:-2] + b"\xff" * 1_000_000 + b"\x00")


def chunk(kind: bytes, body: bytes) -> bytes:
    return struct.pack(">I", len(body)) + kind + body + struct.pack(">I", zlib.crc32(kind + body))


def png(*extras: bytes, pixels: bytes | None = None) -> bytes:
    header = chunk(b"IHDR", struct.pack(">IIBBBBB", 64, 48, 8, 2, 0, 0, 0))
    rows = zlib.compress(bytes(48 * (1 + 64 * 3)) if pixels is None else pixels)
    body = b"".join((header, *extras, chunk(b"IDAT", rows), chunk(b"IEND", b"")))
    return b"\x89PNG\r\n\x1a\n" + body


@pytest.mark.parametrize("kind", [b"zTXt", b"iTXt", b"iCCP"])
def test_many_compressed_texts_are_refused(kind: bytes) -> None:
    text = chunk(kind, b"k\0\0" + zlib.compress(bytes(1000)))
    check(png(text))
    with pytest.raises(PictureError, match="compressed texts"):
        check(png(*[text] * 100))


def test_png_data_beyond_its_size_is_refused() -> None:
    with pytest.raises(PictureError, match="too much data"):
        check(png(pixels=noise(512, 512).tobytes()))


def test_png_of_countless_chunks_is_refused() -> None:
    with pytest.raises(PictureError, match="more than 4096 chunks"):
        check(png(*[chunk(b"tEXt", b"k\0v")] * 5000))


@pytest.mark.parametrize("size", [(1, 1), (640, 480)])
@pytest.mark.parametrize("extension", [".png", ".webp"])
def test_encoded_noise_passes(size: tuple[int, int], extension: str) -> None:
    done, data = cv2.imencode(extension, noise(*size))
    assert done
    check(data.tobytes())
