"""The page by keyboard and for assistive technology, in both colour schemes and on a phone."""

from __future__ import annotations

import re
from typing import Literal

import pytest
from playwright.async_api import Browser, BrowserContext, ViewportSize, expect

from tests.browser.conftest import Visit
from tests.fakes.page_gateway import FakePageGateway

pytestmark = pytest.mark.browser

PHONE = ViewportSize(width=360, height=740)
# Text on its ground, as pairs of custom properties.
PAIRS = (
    ("--text", "--ground"),
    ("--text", "--surface"),
    ("--text", "--warm-ground"),
    ("--text", "--raised"),
    ("--muted", "--surface"),
    ("--muted", "--ground"),
    ("--on-accent", "--accent"),
    ("--on-accent", "--accent-strong"),
)
FOCUS_ORDER = ["skip", "tab-video", "camera", "model", "start", "advanced"]
# From now on it is ten seconds later.
LATER = """() => {
  const own = performance.now.bind(performance);
  performance.now = () => own() + 10_000;
}"""
NAME_FOCUSED = """() => {
  const { id, value, type, tagName } = document.activeElement;
  if (tagName === "SUMMARY") return "advanced";
  return type === "radio" ? value : id;
}"""


async def test_everything_is_reached_in_order_by_keyboard(visit: Visit) -> None:
    names = []
    for _ in FOCUS_ORDER:
        await visit.page.keyboard.press("Tab")
        names.append(await visit.page.evaluate(NAME_FOCUSED))
    assert names == FOCUS_ORDER


async def test_focus_is_visible(visit: Visit) -> None:
    for _ in FOCUS_ORDER:
        await visit.page.keyboard.press("Tab")
        outline = await visit.page.evaluate(
            """() => {
              const { activeElement: focused } = document;
              const shown = focused.type === "radio" ? focused.nextElementSibling : focused;
              return getComputedStyle(shown).outlineStyle;
            }"""
        )
        assert outline == "solid"


async def test_a_run_by_keyboard_alone(visit: Visit, gateway: FakePageGateway) -> None:
    page = visit.page
    for _ in range(3):
        await page.keyboard.press("Tab")
    await page.keyboard.press("ArrowRight")  # from the camera to the face clip
    await page.keyboard.press("Tab")
    await page.keyboard.press("Tab")
    await page.keyboard.press("Enter")
    await visit.wait_for_state("running")
    await visit.wait_for_picture()
    await page.keyboard.press("Space")  # the focus is on the button
    await visit.wait_for_state("idle")


async def test_space_toggles_wherever_it_has_no_other_meaning(visit: Visit) -> None:
    await visit.page.locator("h1").click()
    await visit.page.keyboard.press("Space")
    await visit.wait_for_state("running")
    await visit.page.keyboard.press("Space")
    await visit.wait_for_state("idle")


async def test_space_toggles_after_a_source_was_chosen(visit: Visit) -> None:
    await visit.page.get_by_label("Street clip").check(force=True)
    await visit.page.keyboard.press("Space")
    await visit.wait_for_state("running")
    await visit.page.get_by_label("Camera").check(force=True)
    await visit.wait_for_state("running")
    await visit.page.keyboard.press("Space")
    await visit.wait_for_state("idle")


async def test_controls_have_names_and_roles(visit: Visit) -> None:
    page = visit.page
    await page.locator("#controls summary").click()
    await expect(page.get_by_role("group", name="Source")).to_be_visible()
    await expect(page.get_by_role("radio", name="Camera")).to_be_checked()
    await expect(page.get_by_role("combobox", name="Model", exact=True)).to_be_enabled()
    await expect(page.get_by_role("combobox", name="When the model is busy")).to_be_visible()
    await expect(page.get_by_role("slider", name=re.compile("Deadline"))).to_be_visible()
    await expect(page.get_by_role("checkbox", name="Blur faces on the server")).to_be_visible()
    await expect(page.get_by_role("main")).to_be_visible()
    await expect(page.get_by_role("heading", level=1)).to_have_text("clawstream")


async def test_status_is_announced(visit: Visit) -> None:
    page = visit.page
    status = page.get_by_role("status")
    await expect(status).to_contain_text("See what the model sees")
    await page.click("#start")
    await visit.wait_for_picture()
    await expect(page.get_by_role("img", name="Picture with results: square")).to_be_visible()
    await page.evaluate(LATER)  # what is not urgent is said seldom
    await expect(status).to_contain_text("square", timeout=15_000)


@pytest.mark.parametrize("scheme", ["light", "dark"])
async def test_text_has_contrast(
    browser: Browser, gateway: FakePageGateway, scheme: Literal["light", "dark"]
) -> None:
    context = await browser.new_context(color_scheme=scheme)
    page = await context.new_page()
    await page.goto(gateway.url)
    style = await page.evaluate(
        "names => names.map(name =>"
        " getComputedStyle(document.documentElement).getPropertyValue(name))",
        sorted({name for pair in PAIRS for name in pair}),
    )
    colours = dict(zip(sorted({name for pair in PAIRS for name in pair}), style, strict=True))
    ratios = {pair: contrast(colours[pair[0]], colours[pair[1]]) for pair in PAIRS}
    assert {pair: ratio for pair, ratio in ratios.items() if ratio < 4.5} == {}
    await context.close()


async def test_phone_shows_one_column_without_sideways_scrolling(
    browser: Browser, gateway: FakePageGateway
) -> None:
    context = await browser.new_context(viewport=PHONE, permissions=["camera"])
    visit = Visit(await context.new_page())
    await visit.page.goto(gateway.url)
    await visit.wait_for_state("idle")
    await visit.page.locator("#controls summary").click()
    await visit.page.click("#start")
    await visit.wait_for_picture()
    assert await visit.page.evaluate("document.documentElement.scrollWidth") == PHONE["width"]
    lefts = await visit.page.locator(".tile:visible").evaluate_all(
        "tiles => tiles.map(tile => tile.getBoundingClientRect().left)"
    )
    assert len(set(lefts)) == 1
    heights = await visit.page.locator("button:visible, select:visible").evaluate_all(
        "controls => controls.map(control => control.getBoundingClientRect().height)"
    )
    assert min(heights) >= 44
    await context.close()


async def test_reduced_motion_is_respected(
    context: BrowserContext, gateway: FakePageGateway
) -> None:
    page = await context.new_page()
    await page.emulate_media(reduced_motion="reduce")
    await page.goto(gateway.url)
    await page.click("#start")
    await page.locator("#chip[data-state=running]").wait_for()
    animation = "getComputedStyle(document.querySelector('.dot')).animationName"
    assert await page.evaluate(animation) == "none"


def contrast(first: str, second: str) -> float:
    """WCAG 2 contrast ratio of two #rrggbb colours."""
    light, dark = sorted((luminance(first), luminance(second)), reverse=True)
    return (light + 0.05) / (dark + 0.05)


def luminance(colour: str) -> float:
    channels = [int(colour.strip()[at : at + 2], 16) / 255 for at in (1, 3, 5)]
    linear = [c / 12.92 if c <= 0.04045 else ((c + 0.055) / 1.055) ** 2.4 for c in channels]
    return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]
