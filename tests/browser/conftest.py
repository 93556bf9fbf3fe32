"""Headless Chromium, a fake gateway, and a camera that films a moving square."""

from __future__ import annotations

import contextlib
import os
import shutil
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import av
import numpy as np
import pytest
import pytest_asyncio
from playwright.async_api import Browser, BrowserContext, Page, ViewportSize, async_playwright

from tests.fakes.page_gateway import FakePageGateway

CHROMIUM = os.environ.get("CHROMIUM", "/usr/bin/chromium")
ARGUMENTS = (
    "--headless=new",
    "--no-sandbox",
    "--disable-gpu",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    "--no-first-run",
    "--disable-quic",
)
DESKTOP = ViewportSize(width=1280, height=940)
CLIP_SIZE = (320, 180)
SQUARE = 40


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Everything in this folder runs on one event loop: the browser lives on it."""
    here = Path(__file__).parent
    for item in items:
        if here in item.path.parents:
            item.add_marker(pytest.mark.asyncio(loop_scope="session"), append=False)


# Reads the stage and, in the same turn, finds the white square and the coloured box on it.
MEASURE = """() => {
  const canvas = document.getElementById("picture");
  const { width, height } = canvas;
  const copy = new OffscreenCanvas(width, height).getContext("2d", { willReadFrequently: true });
  copy.drawImage(canvas, 0, 0);
  const pixels = copy.getImageData(0, 0, width, height).data;
  const extent = () => ({ left: width, top: height, right: -1, bottom: -1, count: 0 });
  const white = extent(), coloured = extent();
  const grow = (box, x, y) => {
    box.left = Math.min(box.left, x); box.right = Math.max(box.right, x + 1);
    box.top = Math.min(box.top, y); box.bottom = Math.max(box.bottom, y + 1); box.count += 1;
  };
  for (let y = 0; y < height; y += 1) for (let x = 0; x < width; x += 1) {
    const [r, g, b] = pixels.subarray(4 * (y * width + x));
    const high = Math.max(r, g, b), low = Math.min(r, g, b);
    if (low > 225) grow(white, x, y);
    else if (high > 150 && high - low > 110) grow(coloured, x, y);
  }
  return { width, height, white, coloured };
}"""


@contextlib.asynccontextmanager
async def launch(*arguments: str) -> AsyncIterator[Browser]:
    """Debian's Chromium with extra arguments; Playwright's own build is not needed."""
    if shutil.which(CHROMIUM) is None:
        pytest.skip(f"{CHROMIUM} is missing: install the package chromium, or set CHROMIUM")
    async with async_playwright() as playwright:
        browser = await playwright.chromium.launch(
            executable_path=CHROMIUM, args=[*ARGUMENTS, *arguments]
        )
        yield browser
        await browser.close()


def encode_squares(path: Path, codec: str, pixel_format: str, *, num_frames: int = 50) -> None:
    """A clip at 25 fps of a white square that walks over a dark ground, back and forth."""
    width, height = CLIP_SIZE
    container_format = "mjpeg" if path.suffix == ".mjpeg" else "mp4"
    with av.open(str(path), "w", format=container_format) as container:
        stream = container.add_stream(codec, rate=25)
        assert isinstance(stream, av.VideoStream)
        stream.width, stream.height, stream.pix_fmt = width, height, pixel_format
        for index in range(num_frames):
            picture = np.full((height, width, 3), 40, np.uint8)
            step = abs(num_frames // 2 - index)
            left, top = 20 + step * 9, 30 + step * 3
            picture[top : top + SQUARE, left : left + SQUARE] = 255
            frame = av.VideoFrame.from_ndarray(picture, format="rgb24")
            container.mux(stream.encode(frame))
        container.mux(stream.encode(None))


@pytest.fixture(scope="session")
def squares_mjpeg(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Plays as a camera (``--use-file-for-fake-video-capture``)."""
    path = tmp_path_factory.mktemp("camera") / "squares.mjpeg"
    encode_squares(path, "mjpeg", "yuvj420p")
    return path


@pytest.fixture(scope="session")
def squares_mp4(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Plays as one of the page's clips."""
    path = tmp_path_factory.mktemp("clips") / "squares.mp4"
    encode_squares(path, "libx264", "yuv420p")
    return path


@pytest_asyncio.fixture(scope="session", loop_scope="session")
async def browser(squares_mjpeg: Path) -> AsyncIterator[Browser]:
    """Its camera films the square; contexts without the permission are refused."""
    async with launch(
        "--use-fake-device-for-media-stream", f"--use-file-for-fake-video-capture={squares_mjpeg}"
    ) as browser:
        yield browser


@pytest_asyncio.fixture(loop_scope="session")
async def gateway(squares_mp4: Path) -> AsyncIterator[FakePageGateway]:
    async with FakePageGateway(squares_mp4) as gateway:
        yield gateway


class Visit:
    """One visitor with the page open. What the browser complains about is in ``complaints``."""

    def __init__(self, page: Page) -> None:
        self.page = page
        self.complaints: list[str] = []
        page.on("console", self._on_console)
        page.on("pageerror", lambda error: self.complaints.append(str(error)))

    def _on_console(self, message: Any) -> None:
        if message.type in ("error", "warning"):
            self.complaints.append(message.text)

    async def wait_for_state(self, state: str, timeout_s: float = 15.0) -> None:
        chip = self.page.locator(f"#chip[data-state='{state}']")
        await chip.wait_for(timeout=timeout_s * 1000)

    async def wait_for_picture(self) -> None:
        await self.page.locator("#picture").wait_for(state="visible", timeout=15_000)

    async def start(self) -> None:
        """Press Start and wait until a result is on the stage."""
        await self.page.get_by_role("button", name="Start").click()
        await self.wait_for_state("running")
        await self.wait_for_picture()

    async def measure(self) -> dict[str, Any]:
        """Size of the stage and the extents of what is white and what is coloured on it."""
        seen: dict[str, Any] = await self.page.evaluate(MEASURE)
        return seen

    async def notice(self) -> str:
        return await self.page.locator("#notice").inner_text()


@pytest_asyncio.fixture(loop_scope="session")
async def context(browser: Browser) -> AsyncIterator[BrowserContext]:
    context = await browser.new_context(viewport=DESKTOP, permissions=["camera"])
    yield context
    await context.close()


@pytest_asyncio.fixture(loop_scope="session")
async def visit(context: BrowserContext, gateway: FakePageGateway) -> Visit:
    """The page, loaded and ready."""
    visit = Visit(await context.new_page())
    await visit.page.goto(gateway.url)
    await visit.wait_for_state("idle")
    return visit
