"""What the page says when something is missing, refused, lost or slow, and how it recovers."""

from __future__ import annotations

import asyncio

import pytest
from playwright.async_api import Browser, BrowserContext, expect

from tests.browser.conftest import Visit, launch
from tests.fakes.page_gateway import FakePageGateway

pytestmark = pytest.mark.browser


async def notice_after_start(visit: Visit) -> str:
    await visit.page.click("#start")
    await visit.wait_for_state("idle")
    return await visit.notice()


async def open_page(context: BrowserContext, url: str, state: str) -> Visit:
    visit = Visit(await context.new_page())
    await visit.page.goto(url)
    await visit.wait_for_state(state)
    return visit


async def test_page_loads_without_complaint_under_the_content_policy(visit: Visit) -> None:
    assert await visit.page.locator("#model option").all_inner_texts() == ["squares · objects"]
    assert visit.complaints == []


async def test_refused_permission_is_explained(browser: Browser, gateway: FakePageGateway) -> None:
    context = await browser.new_context(permissions=[])
    visit = await open_page(context, gateway.url, "idle")
    assert "camera is blocked" in await notice_after_start(visit)
    await visit.page.get_by_label("Face clip").check(force=True)
    await visit.start()  # a clip works without the permission
    await context.close()


async def test_missing_camera_is_explained(gateway: FakePageGateway) -> None:
    async with launch() as browser:
        context = await browser.new_context(permissions=["camera"])
        visit = await open_page(context, gateway.url, "idle")
        assert "No camera found" in await notice_after_start(visit)


@pytest.mark.parametrize(
    ("error", "text"),
    [("NotReadableError", "camera is in use"), ("TypeError", "camera does not start")],
)
async def test_camera_faults_are_told_apart(
    context: BrowserContext, gateway: FakePageGateway, error: str, text: str
) -> None:
    await context.add_init_script(
        "MediaDevices.prototype.getUserMedia ="
        f" () => Promise.reject(new DOMException('no', '{error}'))"
    )
    visit = await open_page(context, gateway.url, "idle")
    assert text in await notice_after_start(visit)


async def test_camera_that_goes_away_is_noticed(visit: Visit) -> None:
    await visit.start()
    await visit.page.evaluate(
        "document.getElementById('video').srcObject.getVideoTracks()[0]"
        ".dispatchEvent(new Event('ended'))"
    )
    await visit.wait_for_state("idle")
    assert "camera is gone" in await visit.notice()


async def test_missing_clip_is_explained(context: BrowserContext) -> None:
    async with FakePageGateway(clip=None) as gateway:
        visit = await open_page(context, gateway.url, "idle")
        await visit.page.get_by_label("Face clip").check(force=True)
        assert "clip cannot be played" in await notice_after_start(visit)


async def test_lost_connection_shows_a_countdown_and_recovers(
    visit: Visit, gateway: FakePageGateway
) -> None:
    await visit.start()
    gateway.behaviour.accepts = False
    await gateway.close_sockets(1012)
    await visit.wait_for_state("reconnecting")
    notice = await visit.notice()
    assert "Connection lost" in notice
    assert "Trying again" in notice
    await asyncio.sleep(1.0)
    gateway.behaviour.accepts = True
    await visit.wait_for_state("running")
    assert await visit.page.locator("#notice").is_hidden()
    frames = gateway.frames
    await asyncio.sleep(0.5)
    assert gateway.frames > frames


async def test_the_delivery_tab_does_not_call_a_lost_connection_live(
    visit: Visit, gateway: FakePageGateway
) -> None:
    await visit.start()
    await visit.page.get_by_role("tab", name="Delivery").click()
    state = visit.page.locator("#run-state")
    await expect(state).to_have_text("of the running stream")
    gateway.behaviour.accepts = False
    await gateway.close_sockets(1012)
    await expect(state).to_have_text("the connection is lost, coming back")
    await visit.wait_for_state("reconnecting")
    await expect(visit.page.locator("#service-level")).to_have_text("\u2013")
    gateway.behaviour.accepts = True
    await expect(state).to_have_text("of the running stream", timeout=15_000)


async def test_restarted_gateway_is_waited_for_until_its_model_is_warm(
    visit: Visit, gateway: FakePageGateway
) -> None:
    await visit.start()
    gateway.behaviour.is_ready = False
    await gateway.close_sockets(1012)
    await visit.page.get_by_role("heading", name="The model is not ready").wait_for()
    gateway.behaviour.is_ready = True
    await visit.wait_for_state("running")


async def test_connection_that_must_not_come_back_ends_the_run(
    visit: Visit, gateway: FakePageGateway
) -> None:
    await visit.start()
    await gateway.close_sockets(4505)
    await visit.wait_for_state("idle")
    assert "ended the connection" in await visit.notice()


async def test_overload_is_told_and_taken_back(visit: Visit, gateway: FakePageGateway) -> None:
    gateway.behaviour.answer_every = 3
    await visit.start()
    banner = visit.page.locator("#banner")
    await banner.wait_for(state="visible", timeout=10_000)
    assert "model is slower than the camera" in await banner.inner_text()
    assert await visit.page.locator("[data-reason=superseded]").count() == 1
    gateway.behaviour.answer_every = 1
    await banner.wait_for(state="hidden", timeout=15_000)


async def test_errors_are_told(visit: Visit, gateway: FakePageGateway) -> None:
    await visit.start()
    gateway.behaviour.error = "The model refused the input"
    await visit.page.locator("#banner", has_text="The model refused the input").wait_for()
    gateway.behaviour.error = None
    await visit.page.locator("#banner").wait_for(state="hidden")
    assert "exactly one receipt" in await visit.page.locator("#receipts-line").inner_text()


async def test_credit_that_runs_out_counts_as_skipped(
    visit: Visit, gateway: FakePageGateway
) -> None:
    gateway.behaviour.delay_s = 1.0  # eight frames are in flight long before the first answer
    await visit.start()
    await visit.page.locator("[data-reason=no_credit]").wait_for(timeout=10_000)
    assert await visit.page.locator("#banner").is_visible()


async def test_warming_model_is_waited_for(
    context: BrowserContext, gateway: FakePageGateway
) -> None:
    gateway.behaviour.is_ready = False
    visit = await open_page(context, gateway.url, "warming")
    assert "model squares: warming up" in await visit.notice()
    assert await visit.page.locator("#start").is_disabled()
    gateway.behaviour.is_ready = True
    await visit.wait_for_state("idle")
    await visit.start()


async def test_key_is_asked_for_and_kept_in_memory_only(
    context: BrowserContext, gateway: FakePageGateway
) -> None:
    gateway.behaviour.key = "right"
    visit = await open_page(context, gateway.url, "locked")
    page = visit.page
    assert await page.evaluate("document.activeElement.id") == "key"
    await page.keyboard.type("wrong")
    await page.keyboard.press("Enter")
    await page.get_by_role("heading", name="not accepted").wait_for()
    await page.locator("#key").fill("right")
    await page.get_by_role("button", name="Use key").click()
    await visit.wait_for_state("idle")
    await visit.start()
    stored = "localStorage.length + sessionStorage.length + document.cookie.length"
    assert await page.evaluate(stored) == 0
    await page.reload()
    await visit.wait_for_state("locked")


async def test_key_that_is_revoked_is_asked_for_again(
    visit: Visit, gateway: FakePageGateway
) -> None:
    await visit.start()
    gateway.behaviour.key = "new"
    await gateway.close_sockets(1012)
    await visit.wait_for_state("locked")


async def test_gateway_that_is_away_is_tried_again(
    context: BrowserContext, gateway: FakePageGateway
) -> None:
    page = await context.new_page()
    visit = Visit(page)
    await page.route("**/v1/models", lambda route: route.abort())
    await page.goto(gateway.url)
    await visit.wait_for_state("offline")
    await page.unroute("**/v1/models")
    await visit.wait_for_state("idle")


async def test_page_works_without_offscreen_canvas(
    context: BrowserContext, gateway: FakePageGateway
) -> None:
    await context.add_init_script("delete globalThis.OffscreenCanvas")
    visit = await open_page(context, gateway.url, "idle")
    await visit.start()
    assert visit.page.workers == []
    assert visit.complaints == []


async def test_page_works_without_video_frame_callbacks(
    context: BrowserContext, gateway: FakePageGateway
) -> None:
    await context.add_init_script("delete HTMLVideoElement.prototype.requestVideoFrameCallback")
    visit = await open_page(context, gateway.url, "idle")
    await visit.start()
    assert visit.complaints == []
