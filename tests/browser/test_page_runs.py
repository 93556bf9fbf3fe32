"""A stream runs: results are drawn on their own frame, from camera and clip."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from functools import partial
from typing import Any

import cv2
import numpy as np
import pytest
from playwright.async_api import Page

from tests.browser.conftest import CLIP_SIZE, Visit
from tests.fakes.page_gateway import FakePageGateway

pytestmark = pytest.mark.browser


async def number(page: Page, element: str) -> float:
    text = await page.locator(f"#{element}").inner_text()
    return float(text.split()[0])


def assert_box_is_around_square(seen: dict[str, Any]) -> None:
    """The box is drawn outside the square, its label above or inside, nothing far from it."""
    white, coloured = seen["white"], seen["coloured"]
    assert white["count"] > 0
    slack = 0.02 * seen["width"]
    assert coloured["left"] == pytest.approx(white["left"], abs=slack)
    assert coloured["bottom"] == pytest.approx(white["bottom"], abs=slack)


async def test_results_are_drawn_around_what_the_camera_sees(visit: Visit) -> None:
    await visit.start()
    assert_box_is_around_square(await visit.measure())
    assert visit.complaints == []


async def test_a_late_result_is_drawn_on_its_own_frame(
    visit: Visit, gateway: FakePageGateway
) -> None:
    # 0.25 s are six frames, in which the square moves by more than its own width.
    gateway.behaviour.delay_s = 0.25
    await visit.start()
    lefts = set()
    for _ in range(8):
        seen = await visit.measure()
        assert_box_is_around_square(seen)
        lefts.add(round(seen["white"]["left"] / seen["width"], 2))
        await asyncio.sleep(0.12)
    assert len(lefts) >= 3  # it did move


async def test_a_clip_plays_as_a_source(visit: Visit, gateway: FakePageGateway) -> None:
    await visit.page.get_by_label("Street clip").check(force=True)
    await visit.start()
    assert_box_is_around_square(await visit.measure())
    seen = await visit.measure()
    assert seen["width"] / seen["height"] == pytest.approx(CLIP_SIZE[0] / CLIP_SIZE[1], rel=0.02)
    assert visit.complaints == []


async def test_numbers_count_what_happens(visit: Visit, gateway: FakePageGateway) -> None:
    await visit.start()
    await asyncio.sleep(2.5)
    page = visit.page
    assert await number(page, "fps") > 3
    assert 20 <= await number(page, "p50") <= await number(page, "p95") < 1000
    sent, results = await number(page, "sent"), await number(page, "results")
    assert 0 < results <= sent <= gateway.frames
    assert "exactly one receipt" in await page.locator("#receipts-line").inner_text()
    assert await number(page, "phase-model") == pytest.approx(15.0)
    assert max(ack.get("rendered_seq", 0) for ack in gateway.acks) > 0


async def test_advanced_choices_reach_the_gateway(visit: Visit, gateway: FakePageGateway) -> None:
    page = visit.page
    await page.locator("#controls summary").click()
    await page.get_by_label("When the model is busy").select_option("fifo")
    await page.get_by_label("Deadline").fill("300")
    await visit.start()
    assert gateway.opened[-1]["options"] == {"policy": "fifo", "deadline_ms": 300}
    await page.get_by_label("When the model is busy").select_option("lossless")
    await visit.wait_for_state("running")
    await wait_for(lambda: gateway.opened[-1]["options"] == {"policy": "lossless"})


def is_opened_with(gateway: FakePageGateway, policy: str) -> bool:
    return bool(gateway.opened[-1]["options"]["policy"] == policy)


COUNT_CALLBACKS = """() => {
  const video = HTMLVideoElement.prototype;
  const own = video.requestVideoFrameCallback;
  globalThis.asked = 0;
  video.requestVideoFrameCallback = function (act) { asked += 1; return own.call(this, act); };
}"""


async def test_changed_settings_do_not_multiply_the_frames_captured(
    visit: Visit, gateway: FakePageGateway
) -> None:
    page = visit.page
    await page.evaluate(COUNT_CALLBACKS)
    await page.locator("#controls summary").click()
    await page.get_by_label("Street clip").check(force=True)
    await visit.start()
    for policy in ("fifo", "lossless", "latest"):
        await page.get_by_label("When the model is busy").select_option(policy)
        await wait_for(partial(is_opened_with, gateway, policy))
        await visit.wait_for_state("running")
    before = await page.evaluate("asked")
    await asyncio.sleep(1.0)
    assert await page.evaluate("asked") - before <= 35  # of a clip at 25 fps


async def test_blurred_frames_of_the_server_replace_the_local_ones(
    visit: Visit, gateway: FakePageGateway
) -> None:
    green = np.zeros((90, 160, 3), np.uint8)
    green[:] = (0, 200, 0)
    gateway.behaviour.annotate = cv2.imencode(".jpg", green)[1].tobytes()
    page = visit.page
    await page.locator("#controls summary").click()
    await page.get_by_label("Blur faces on the server").check()
    await visit.start()
    assert gateway.opened[-1]["options"]["annotate"] == "blur"
    seen = await visit.measure()
    assert seen["coloured"]["count"] > 0.8 * seen["width"] * seen["height"]


async def test_stop_gives_the_camera_back(visit: Visit) -> None:
    await visit.start()
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
    await visit.start()
    assert visit.complaints == []


async def wait_for(condition: Callable[[], bool], timeout_s: float = 10.0) -> None:
    """Poll: what is waited for happens in the browser."""
    for _ in range(round(timeout_s / 0.05)):
        if condition():
            return
        await asyncio.sleep(0.05)
    pytest.fail(f"did not happen within {timeout_s} s")
