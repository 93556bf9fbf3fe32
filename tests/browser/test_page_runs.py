"""A stream runs: results are drawn on their own frame, from camera and clip."""

from __future__ import annotations

import asyncio
from typing import Any

import cv2
import numpy as np
import pytest
from playwright.async_api import Page

from tests.browser.conftest import CLIP_SIZE, Visit
from tests.fakes.page_gateway import FakePageGateway

pytestmark = pytest.mark.browser

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


async def start(visit: Visit) -> None:
    await visit.page.get_by_role("button", name="Start").click()
    await visit.wait_for_state("running")
    await visit.wait_for_picture()


async def number(page: Page, element: str) -> float:
    text = await page.locator(f"#{element}").inner_text()
    return float(text.split()[0].replace("–", "nan"))


def assert_box_is_around_square(seen: dict[str, Any]) -> None:
    """The box is drawn outside the square, its label above or inside, nothing far from it."""
    white, coloured = seen["white"], seen["coloured"]
    assert white["count"] > 0
    slack = 0.02 * seen["width"]
    assert coloured["left"] == pytest.approx(white["left"], abs=slack)
    assert coloured["bottom"] == pytest.approx(white["bottom"], abs=slack)


async def test_results_are_drawn_around_what_the_camera_sees(visit: Visit) -> None:
    await start(visit)
    assert_box_is_around_square(await visit.page.evaluate(MEASURE))
    assert visit.complaints == []


async def test_a_late_result_is_drawn_on_its_own_frame(
    visit: Visit, gateway: FakePageGateway
) -> None:
    # 0.25 s are six frames, in which the square moves by more than its own width.
    gateway.behaviour.delay_s = 0.25
    await start(visit)
    lefts = set()
    for _ in range(8):
        seen = await visit.page.evaluate(MEASURE)
        assert_box_is_around_square(seen)
        lefts.add(round(seen["white"]["left"] / seen["width"], 2))
        await asyncio.sleep(0.12)
    assert len(lefts) >= 3  # it did move


async def test_a_clip_plays_as_a_source(visit: Visit, gateway: FakePageGateway) -> None:
    await visit.page.get_by_label("Street clip").check(force=True)
    await start(visit)
    assert_box_is_around_square(await visit.page.evaluate(MEASURE))
    seen = await visit.page.evaluate(MEASURE)
    assert seen["width"] / seen["height"] == pytest.approx(CLIP_SIZE[0] / CLIP_SIZE[1], rel=0.02)
    assert visit.complaints == []


async def test_numbers_count_what_happens(visit: Visit, gateway: FakePageGateway) -> None:
    await start(visit)
    await asyncio.sleep(2.5)
    page = visit.page
    assert await number(page, "fps") > 3
    assert 20 <= await number(page, "p50") <= await number(page, "p95") < 1000
    sent, results = await number(page, "sent"), await number(page, "results")
    assert 0 < results <= sent <= gateway.frames
    assert "exactly one receipt" in await page.locator("#receipts-line").inner_text()
    assert await number(page, "phase-model") == pytest.approx(15.0)
    assert max(ack["rendered_seq"] for ack in gateway.acks) > 0


async def test_advanced_choices_reach_the_gateway(visit: Visit, gateway: FakePageGateway) -> None:
    page = visit.page
    await page.get_by_text("Advanced").click()
    await page.get_by_label("When the model is busy").select_option("fifo")
    await page.get_by_label("Deadline").fill("300")
    await start(visit)
    assert gateway.opened[-1]["options"] == {"policy": "fifo", "deadline_ms": 300}
    await page.get_by_label("When the model is busy").select_option("lossless")
    await visit.wait_for_state("running")
    await wait_for(lambda: gateway.opened[-1]["options"] == {"policy": "lossless"})


async def test_blurred_frames_of_the_server_replace_the_local_ones(
    visit: Visit, gateway: FakePageGateway
) -> None:
    green = np.zeros((90, 160, 3), np.uint8)
    green[:] = (0, 200, 0)
    gateway.behaviour.annotate = cv2.imencode(".jpg", green)[1].tobytes()
    page = visit.page
    await page.get_by_text("Advanced").click()
    await page.get_by_label("Blur faces on the server").check()
    await start(visit)
    assert gateway.opened[-1]["options"]["annotate"] == "blur"
    seen = await page.evaluate(MEASURE)
    assert seen["coloured"]["count"] > 0.8 * seen["width"] * seen["height"]


async def test_stop_gives_the_camera_back(visit: Visit) -> None:
    await start(visit)
    await visit.page.get_by_role("button", name="Stop").click()
    await visit.wait_for_state("idle")
    assert await visit.page.evaluate("document.getElementById('video').srcObject") is None
    assert "See what the model sees" in await visit.notice()


async def test_many_starts_and_stops_leave_a_working_page(visit: Visit) -> None:
    button = visit.page.locator("#start")
    for _ in range(10):
        await button.click()
        await button.click()
    await visit.wait_for_state("idle")
    await start(visit)
    assert visit.complaints == []


async def wait_for(condition: Any, timeout_s: float = 10.0) -> None:
    """Poll: what is waited for happens in the browser."""
    async with asyncio.timeout(timeout_s):
        while not condition():
            await asyncio.sleep(0.05)
