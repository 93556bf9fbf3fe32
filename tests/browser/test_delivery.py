"""The Delivery tab in front of a real gateway whose engine speaks in bursts."""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncIterator

import pytest
import pytest_asyncio
from playwright.async_api import BrowserContext, Page, ViewportSize, expect

import gateway.app
from engine.composite import CompositeEngine
from engine.manifest import Manifest
from engine.types import Item
from gateway.app import Gateway
from gateway.serving import Serving
from gateway.session import pressure
from gateway.stream.service_level import Level
from gateway.wire.messages import ServerEvent
from tests.browser.chat_visit import LIMIT_MS, ChatVisit, visit_chat
from tests.browser.conftest import DESKTOP
from tests.fakes.engine import FakeEngine
from tests.fakes.gateway import running_gateway
from tests.fakes.page_gateway import FakePageGateway
from tests.fakes.text_engine import TextEngine

pytestmark = pytest.mark.browser

NARROW = ViewportSize(width=400, height=900)
WORDS = tuple(f" word{number}" for number in range(40))
BURSTS_S = (0.0, 0.0, 0.0, 0.14)  # four tokens at once, 28 per second
LEAST_PACED_MS = 12.0
CHARTS = ("chart-gaps", "chart-reserve", "chart-held")
# Counts the pixels of a chart that are as colourful as its curves and not as grey as its scale.
COLOURFUL = """(id) => {
  const { width, height } = document.getElementById(id);
  const data = document.getElementById(id).getContext("2d").getImageData(0, 0, width, height).data;
  let count = 0;
  for (let i = 0; i < data.length; i += 4) {
    const low = Math.min(data[i], data[i + 1], data[i + 2]);
    const high = Math.max(data[i], data[i + 1], data[i + 2]);
    if (data[i + 3] > 200 && high - low > 60) count += 1;
  }
  return count;
}"""


def nothing_found(item: Item) -> bytes:
    return b'{"width":640,"height":360,"objects":[]}'


@pytest_asyncio.fixture(scope="module", loop_scope="session")
async def served() -> AsyncIterator[Gateway]:
    manifests = {
        "fake": Manifest(name="fake", kind="chat"),
        "squares": Manifest(name="squares", kind="detect"),
    }
    text = TextEngine(words=WORDS, gap_s=BURSTS_S)
    engine = CompositeEngine([FakeEngine(("squares",), respond=nothing_found), text])
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(gateway.app, "Serving", lambda engine, _: Serving(engine, manifests))
        patch.setattr(pressure, "MAX_LOOP_LAG_S", 60.0)  # the browser may fill the machine
        async with running_gateway(engine) as served:
            yield served


@pytest_asyncio.fixture(loop_scope="session")
async def visit(context: BrowserContext, served: Gateway) -> ChatVisit:
    """A visitor in the Delivery tab, who may ask."""
    visit = await visit_chat(context, served.url)
    await visit.page.get_by_role("tab", name="Delivery").click()
    return visit


async def number(page: Page, element: str) -> float:
    return float(await page.locator(f"#{element}").inner_text())


async def ask(visit: ChatVisit) -> None:
    """Press the tab's own button and wait for the whole answer."""
    await visit.page.locator("#repeat").click()
    state = visit.page.locator("#answer-state")
    await expect(state).to_contain_text("being answered by fake", timeout=LIMIT_MS)
    await expect(state).to_contain_text("answered by fake", timeout=LIMIT_MS)
    await visit.wait_for_answer()
    await asyncio.sleep(0.15)  # one drawing after the end


async def test_engine_and_delivered_gaps_are_drawn_beside_each_other(visit: ChatVisit) -> None:
    await ask(visit)
    page = visit.page
    for chart in CHARTS:
        assert await page.evaluate(COLOURFUL, chart) > 200, chart
    # The engine speaks in bursts of four; what is delivered is even.
    assert await number(page, "engine-median") < LEAST_PACED_MS
    assert await number(page, "engine-std") > 30
    assert await number(page, "delivered-median") > LEAST_PACED_MS
    assert await number(page, "arrived-longest") > LEAST_PACED_MS
    assert 15 < await number(page, "pace-rate") <= 50
    await expect(page.locator("#answer-held-most")).to_contain_text(" ms")
    assert "word39" in await page.locator("#preview").inner_text()
    assert visit.complaints == []


async def test_with_pacing_off_the_bursts_arrive_as_they_are(visit: ChatVisit) -> None:
    page = visit.page
    await page.get_by_label("Off", exact=True).check()
    await ask(visit)
    assert await page.locator("#pace-rate").inner_text() == "off"
    assert await number(page, "delivered-median") < LEAST_PACED_MS
    assert await page.evaluate(COLOURFUL, "chart-gaps") > 200
    await page.get_by_label("Paced", exact=True).check()
    await ask(visit)
    assert await number(page, "delivered-median") > LEAST_PACED_MS
    assert await page.locator(".answer").count() == 1  # asked again, not asked as well
    assert visit.complaints == []


async def test_service_level_and_network_are_shown(visit: ChatVisit, served: Gateway) -> None:
    page = visit.page
    await ask(visit)
    await expect(page.locator("#service-level")).to_have_text("normal")
    await expect(page.locator("#network-state")).to_have_text("connected")
    await expect(page.locator("#network-rtt")).to_contain_text(" ms")
    assert await page.locator("#network-breaks").inner_text() == "0"
    served.sessions.say(ServerEvent(kind="service_level", text="", level=Level.NO_EXTRAS.label))
    await expect(page.locator("#service-level")).to_have_text("no extras")
    assert visit.complaints == []


async def test_frames_and_their_playout_are_shown(visit: ChatVisit) -> None:
    page = visit.page
    await page.get_by_role("tab", name="Video").click()
    await page.locator("#controls summary").click()
    await page.get_by_label("Results are shown").select_option("playout")
    await page.get_by_role("button", name="Start").click()
    await visit.wait_for_picture()
    await page.get_by_role("tab", name="Delivery").click()
    for element in ("age-p50", "age-p95", "frame-jitter", "playout"):
        await expect(page.locator(f"#{element}")).to_contain_text(" ms", timeout=LIMIT_MS)
    await ask(visit)  # both at once
    for chart in ("chart-age", "chart-results", "chart-gaps"):
        assert await page.evaluate(COLOURFUL, chart) > 50, chart
    await save_screenshot(visit)
    assert visit.complaints == []


async def test_losses_and_hints_are_told(visit: ChatVisit, gateway: FakePageGateway) -> None:
    gateway.behaviour.answer_every = 2
    gateway.behaviour.hint = {"max_fps": 12.0, "max_width": 480}
    await visit.page.goto(gateway.url)
    await visit.wait_for_state("idle")
    await visit.start()
    await visit.page.get_by_role("tab", name="Delivery").click()
    await expect(visit.page.locator("#hints")).to_have_text("1: 12.0 fps, 480 px")
    reasons = visit.page.locator("#delivery-reasons")
    await expect(reasons).to_contain_text("newer frame came", timeout=LIMIT_MS)


async def test_the_tab_fits_a_narrow_screen(visit: ChatVisit) -> None:
    await visit.page.set_viewport_size(NARROW)
    await ask(visit)
    overflow = "document.documentElement.scrollWidth - document.documentElement.clientWidth"
    assert await visit.page.evaluate(overflow) <= 0
    assert await visit.page.evaluate(COLOURFUL, "chart-gaps") > 200
    await visit.page.set_viewport_size(DESKTOP)


async def save_screenshot(visit: ChatVisit) -> None:
    """For the documentation: set CLAWSTREAM_DELIVERY_SCREENSHOT to a path to keep it."""
    path = os.environ.get("CLAWSTREAM_DELIVERY_SCREENSHOT")
    if path is not None:
        await asyncio.sleep(5.0)  # plots that show something
        await ask(visit)
        await visit.page.screenshot(path=path, full_page=True)
