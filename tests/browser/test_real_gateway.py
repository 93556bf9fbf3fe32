"""The whole path: a camera that films a face, the real gateway and model, boxes on the page."""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import av
import cv2
import pytest
import pytest_asyncio
from playwright.async_api import ViewportSize

from engine.models.store import ModelStore
from gateway.app import Gateway
from gateway.config import GatewayConfig
from gateway.config_sections import ServerConfig
from loadtest.bare_centerface import BareCenterFace
from tests.browser.conftest import Visit, launch

pytestmark = pytest.mark.browser

SCREEN = ViewportSize(width=1160, height=915)
CAMERA_SIZE = (704, 576)  # the clip's shape at a camera's size
SLACK = 0.03  # of the picture's width: line width, label, JPEG


@pytest.fixture(scope="module")
def face_frames() -> list[Any]:
    """The face clip, as BGR arrays of the camera's size."""
    with av.open(str(ModelStore().pull_clip("face"))) as container:
        frames = [frame.to_ndarray(format="bgr24") for frame in container.decode(video=0)]
    return [cv2.resize(frame, CAMERA_SIZE, interpolation=cv2.INTER_CUBIC) for frame in frames]


@pytest.fixture(scope="module")
def face_mjpeg(face_frames: list[Any], tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Chromium's camera plays a file of JPEGs one after another."""
    path = tmp_path_factory.mktemp("camera") / "face.mjpeg"
    jpegs = [cv2.imencode(".jpg", frame)[1].tobytes() for frame in face_frames]
    path.write_bytes(b"".join(jpegs))
    return path


@pytest.fixture(scope="module")
def face_extents(face_frames: list[Any]) -> dict[str, tuple[float, float]]:
    """Least and greatest edge of the face over the clip, as shares of the picture's size."""
    reference = BareCenterFace(ModelStore().pull("centerface").files["model"])
    found = [reference(cv2.imencode(".jpg", f)[1].tobytes()) for f in face_frames[::8]]
    boxes = [max(faces, key=lambda face: face.score).box for faces in found if faces]
    width, height = CAMERA_SIZE
    edges = {
        "left": [box[0] / width for box in boxes],
        "right": [box[2] / width for box in boxes],
        "bottom": [box[3] / height for box in boxes],
    }
    return {name: (min(values), max(values)) for name, values in edges.items()}


@pytest_asyncio.fixture(scope="module", loop_scope="session")
async def address() -> AsyncIterator[str]:
    ModelStore().pull("centerface")
    gateway = Gateway(GatewayConfig(server=ServerConfig(port=0)))
    await gateway.start()
    yield gateway.url
    await gateway.aclose()


async def test_boxes_are_drawn_over_the_face(
    address: str, face_mjpeg: Path, face_extents: dict[str, tuple[float, float]]
) -> None:
    async with launch(
        "--use-fake-device-for-media-stream", f"--use-file-for-fake-video-capture={face_mjpeg}"
    ) as browser:
        context = await browser.new_context(viewport=SCREEN, permissions=["camera"])
        visit = Visit(await context.new_page())
        await visit.page.goto(address)
        await visit.wait_for_state("idle")
        await visit.start()
        await asyncio.sleep(2.0)
        for _ in range(5):
            assert_box_is_on_the_face(await visit.measure(), face_extents)
            await asyncio.sleep(0.3)
        await save_screenshot(visit)
        assert await visit.page.locator("#found").inner_text() == "face"
        assert "exactly one receipt" in await visit.page.locator("#receipts-line").inner_text()
        assert visit.complaints == []


def assert_box_is_on_the_face(
    seen: dict[str, Any], extents: dict[str, tuple[float, float]]
) -> None:
    coloured = seen["coloured"]
    assert coloured["count"] > 0, "no box is drawn"
    for name, (least, greatest) in extents.items():
        size = seen["height"] if name == "bottom" else seen["width"]
        assert least - SLACK <= coloured[name] / size <= greatest + SLACK, name


async def save_screenshot(visit: Visit) -> None:
    """For the documentation: set CLAWSTREAM_SCREENSHOT to a path to keep it."""
    path = os.environ.get("CLAWSTREAM_SCREENSHOT")
    if path is not None:
        await asyncio.sleep(15.0)  # plots that show something
        await visit.page.screenshot(path=path)
