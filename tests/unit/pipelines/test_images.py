from __future__ import annotations

import cv2
import numpy as np
import pytest

from engine.errors import InvalidInput
from engine.manifest import InputSpec
from pipelines import images
from tests.fakes.pictures import encode, gradient, noise, with_exif_orientation

pytestmark = pytest.mark.unit

FORMATS = (".jpg", ".png", ".webp")


@pytest.mark.parametrize("extension", FORMATS)
def test_every_understood_format_is_decoded(extension: str) -> None:
    picture = images.decode(memoryview(encode(gradient(48, 32), extension)))
    assert picture.shape == (32, 48, 3)
    assert picture.dtype == np.uint8
    # WebP and JPEG are lossy; the corners tell the channels and the axes apart.
    assert np.allclose(picture[0, -1], (255, 0, 40), atol=12)
    assert np.allclose(picture[-1, 0], (0, 255, 40), atol=12)


def test_grey_and_transparent_pictures_get_three_channels() -> None:
    grey = encode(gradient(16, 8)[..., 0], ".png")
    transparent = encode(np.dstack((gradient(16, 8), np.zeros((8, 16), np.uint8))), ".png")
    assert images.decode(memoryview(grey)).shape == (8, 16, 3)
    assert np.array_equal(images.decode(memoryview(transparent)), gradient(16, 8))


def test_payload_may_be_read_only_or_writable_and_is_not_kept() -> None:
    data = bytearray(encode(gradient(16, 8), ".png"))
    view = memoryview(data)
    images.decode(view.toreadonly())
    picture = images.decode(view)
    view[:] = bytes(len(view))
    assert np.array_equal(picture, gradient(16, 8))


def test_empty_picture_is_refused() -> None:
    with pytest.raises(InvalidInput, match="empty"):
        images.decode(memoryview(b""))


@pytest.mark.parametrize(
    "data", [b"x", b"hello world" * 9, b"GIF89a" + bytes(99), b"BM" + bytes(99), b"RIFFxxxxWAVE"]
)
def test_other_formats_are_refused_by_their_first_bytes(data: bytes) -> None:
    with pytest.raises(InvalidInput, match="unknown picture format"):
        images.decode(memoryview(data))


@pytest.mark.parametrize("extension", FORMATS)
def test_picture_cut_anywhere_is_refused(extension: str) -> None:
    data = encode(noise(40, 24), extension)
    for size in range(1, len(data), 7):
        with pytest.raises(InvalidInput):
            images.decode(memoryview(data)[:size])


@pytest.mark.parametrize("extension", FORMATS)
def test_garbage_inside_gives_a_picture_or_invalid_input(extension: str) -> None:
    intact = encode(noise(40, 24), extension)
    generator = np.random.default_rng(5)
    for _ in range(60):
        data = bytearray(intact)
        for position in generator.integers(0, len(data), 12):
            data[position] = generator.integers(0, 256)
        try:
            picture = images.decode(memoryview(data))
        except InvalidInput:
            continue
        assert picture.dtype == np.uint8


def test_error_text_names_nothing_of_the_library() -> None:
    data = bytearray(encode(noise(40, 24)))
    data[3:40] = bytes(37)
    with pytest.raises(InvalidInput, match=r"^the JPEG picture is corrupt or too large to decode$"):
        images.decode(memoryview(data))


def test_jpeg_with_padding_or_a_video_behind_it_is_decoded() -> None:
    data = encode(gradient(48, 32))
    for trailer in (bytes(600), b"\x00\x00\x00\x18ftypmp42" * 50):
        assert images.decode(memoryview(data + trailer)).shape == (32, 48, 3)


def test_end_marker_of_a_thumbnail_does_not_complete_a_picture() -> None:
    data = with_exif_orientation(encode(noise(64, 64)), 1, thumbnail=encode(gradient(8, 8)))
    assert images.decode(memoryview(data)).shape == (64, 64, 3)
    with pytest.raises(InvalidInput, match="truncated"):
        images.decode(memoryview(data[:-500]))


def test_long_chain_of_segments_ends_the_search() -> None:
    data = b"\xff\xd8" + b"\xff\xe0\x00\x02" * 200_000 + b"\xff\xda" + b"\xff\xd9" + b"x"
    with pytest.raises(InvalidInput, match="truncated"):
        images.decode(memoryview(data))


def test_exif_orientation_turns_the_picture_as_a_browser_does() -> None:
    turned = images.decode(memoryview(with_exif_orientation(encode(gradient(48, 32)), 6)))
    assert turned.shape == (48, 32, 3)
    # Orientation 6: the stored top left is shown top right, the stored bottom left top left.
    assert np.allclose(turned[0, -1], (0, 0, 40), atol=12)
    assert np.allclose(turned[0, 0], (0, 255, 40), atol=12)


def test_letterbox_keeps_the_ratio_and_pads_right_and_below() -> None:
    spec = InputSpec(width=320, height=256, pad_value=114)
    fitted, placement = images.fit(gradient(176, 144), spec)
    assert fitted.shape == (256, 320, 3)
    assert np.all(fitted[:, 313:] == 114)
    assert np.array_equal(fitted[:, :313], cv2.resize(gradient(176, 144), (313, 256)))
    assert (placement.scale_x, placement.scale_y) == (313 / 176, 256 / 144)

    fitted, placement = images.fit(gradient(100, 10), spec)
    assert np.all(fitted[32:] == 114)
    assert (placement.offset_x, placement.offset_y) == (0.0, 0.0)


@pytest.mark.parametrize("fit", ["letterbox", "stretch", "centre_crop"])
@pytest.mark.parametrize("size", [(1, 1), (1, 3000), (3000, 1), (320, 256), (641, 479)])
def test_any_size_fits(fit: str, size: tuple[int, int]) -> None:
    fitted, placement = images.fit(gradient(*size), InputSpec(width=320, height=256, fit=fit))
    assert fitted.shape == (256, 320, 3)
    assert (placement.width, placement.height) == size


def test_stretch_fills_the_input() -> None:
    fitted, placement = images.fit(
        gradient(100, 200), InputSpec(width=50, height=50, fit="stretch")
    )
    assert np.array_equal(fitted, cv2.resize(gradient(100, 200), (50, 50)))
    assert (placement.scale_x, placement.scale_y) == (0.5, 0.25)


def test_centre_crop_cuts_the_middle() -> None:
    picture = gradient(300, 200)
    spec = InputSpec(width=100, height=100, fit="centre_crop", crop_fraction=0.5)
    fitted, placement = images.fit(picture, spec)
    assert np.array_equal(fitted, picture[50:150, 100:200])
    assert placement.to_picture(np.array([[0.0, 0.0], [100.0, 100.0]])).tolist() == [
        [100.0, 50.0],
        [200.0, 150.0],
    ]


def test_tensor_is_red_first_and_normalised() -> None:
    picture = gradient(6, 4)
    plain = images.to_tensor([picture], InputSpec(width=6, height=4))[0]
    assert plain.shape == (3, 4, 6)
    assert plain.dtype == np.float32
    assert plain.flags.c_contiguous
    assert np.array_equal(plain, picture[..., ::-1].transpose(2, 0, 1))

    spec = InputSpec(width=6, height=4, mean=(127.0, 0.0, 3.0), scale=(1 / 128, 0.5, 1.0))
    mean, scale = np.array(spec.mean)[:, None, None], np.array(spec.scale)[:, None, None]
    expected = (plain - mean) * scale
    assert np.allclose(images.to_tensor([picture], spec)[0], expected, rtol=1e-6)
