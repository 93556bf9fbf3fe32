"""Every answer is about its own frame: sizes, formats and clients mixed, through real workers."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from typing import Any, NamedTuple

import cv2
import numpy as np
import pytest
from numpy.typing import NDArray

from gateway.client import connect, frames_from_bytes
from loadtest.gateway_process import GatewayProcess
from tests.fakes.pictures import encode, with_exif_orientation

pytestmark = pytest.mark.integration

CLIENTS, FRAMES = 50, 6
TOLERANCE = 8  # of JPEG, per channel
TURN_RIGHT = 6  # of EXIF: drawn a quarter turn clockwise

Colour = tuple[int, int, int]  # BGR


class Picture(NamedTuple):
    """Bytes, and what the answer to them must say."""

    data: bytes
    width: int
    height: int
    left: Colour
    right: Colour


@pytest.fixture(scope="module")
def gateway(tmp_path_factory: pytest.TempPathFactory) -> Iterator[GatewayProcess]:
    model = tmp_path_factory.mktemp("models") / "colours.onnx"
    model.touch()
    model.with_suffix(".toml").write_text('pipeline = "tests.fakes.colour_pipeline:build"\n')
    serving = "workers = 2\nmax_batch_size = 8\nprepare_threads = 2"
    config = f'[models.colours]\npath = "{model}"\n{serving}\n'
    with GatewayProcess(config, start_s=60.0) as running:
        yield running


def halves(width: int, height: int, first: Colour, second: Colour) -> NDArray[np.uint8]:
    """``first`` on the left, ``second`` on the right."""
    picture = np.empty((height, width, 3), np.uint8)
    picture[:, : width // 2], picture[:, width // 2 :] = first, second
    return picture


def coloured(number: int, width: int, height: int, extension: str = ".jpg") -> Picture:
    """No two numbers below 1,000 look alike."""
    left = (number % 10 * 25, number // 10 % 10 * 25, number // 100 * 25)
    right = (left[2], left[0], left[1])
    data = encode(halves(width, height, left, right), extension)
    return Picture(data, width, height, left, right)


def mixed() -> Iterator[Picture]:
    """What cameras and people send."""
    for number in range(0, 48, 8):
        yield coloured(number, 640, 480)
        yield coloured(number + 1, 1280, 720)
        yield coloured(number + 2, 322, 241, ".png")
        yield coloured(number + 3, 130, 67, ".webp")
        grey = number * 5
        yield Picture(encode(np.full((90, 121), grey, np.uint8)), 121, 90, (grey,) * 3, (grey,) * 3)
        yield _turned(number + 5, 96, 64)
        one = (number, 255 - number, 60)
        yield Picture(encode(np.full((1, 1, 3), one, np.uint8), ".png"), 1, 1, one, one)
        yield coloured(number + 7, 16, 3, ".png")


def _turned(number: int, width: int, height: int) -> Picture:
    """Stored lying, drawn upright."""
    drawn = coloured(number, height, width)
    stored = cv2.rotate(
        halves(height, width, drawn.left, drawn.right), cv2.ROTATE_90_COUNTERCLOCKWISE
    )
    return drawn._replace(data=with_exif_orientation(encode(stored), TURN_RIGHT))


def assert_is_about(answer: Any, picture: Picture) -> None:
    assert (answer["width"], answer["height"]) == (picture.width, picture.height)
    for half in ("left", "right"):
        expected = getattr(picture, half)
        assert np.abs(np.subtract(answer[half], expected)).max() <= TOLERANCE, (answer, picture[1:])


async def ask(url: str, pictures: list[Picture]) -> None:
    """Send them all at once and compare every answer."""
    source = frames_from_bytes([picture.data for picture in pictures], fps=None)
    async with asyncio.timeout(60), connect(url) as client:
        stream = client.stream_frames(source, model="colours", policy="lossless")
        results = [result async for result in stream]
    assert [result.seq for result in results] == list(range(len(pictures)))
    for result, picture in zip(results, pictures, strict=True):
        assert_is_about(result.data, picture)


async def test_sizes_formats_and_orientations_in_turn(gateway: GatewayProcess) -> None:
    await ask(gateway.url, list(mixed()))


async def test_fifty_clients_each_with_colours_of_its_own(gateway: GatewayProcess) -> None:
    await asyncio.gather(
        *(
            ask(
                gateway.url,
                [coloured(client * FRAMES + frame, 160, 120) for frame in range(FRAMES)],
            )
            for client in range(CLIENTS)
        )
    )
