"""The whole path: the page, the real gateway, the real language model, several answers at once."""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncIterator

import pytest
import pytest_asyncio
from playwright.async_api import Browser, ViewportSize, expect

from engine.models.store import ModelStore
from gateway.app import Gateway
from gateway.commands.chat import DEFAULT_MODEL
from gateway.config import GatewayConfig, ServedModel
from gateway.config_sections import ServerConfig
from tests.browser.chat_visit import ChatVisit, visit_chat

pytestmark = pytest.mark.slow

SCREEN = ViewportSize(width=1280, height=860)
FIRST = "What is a socket? Explain it in two sentences."


@pytest_asyncio.fixture(scope="module", loop_scope="session")
async def address() -> AsyncIterator[str]:
    await asyncio.to_thread(ModelStore().pull, DEFAULT_MODEL)
    config = GatewayConfig(server=ServerConfig(port=0), models={DEFAULT_MODEL: ServedModel()})
    gateway = Gateway(config)
    await gateway.start()
    yield gateway.url
    await gateway.aclose()


async def wait_until_answered(visit: ChatVisit) -> str:
    newest = visit.page.locator(".answer").last
    await expect(newest).to_have_attribute("data-state", "done", timeout=120_000)
    return (await visit.answers())[-1]


async def test_the_model_answers_several_chats_at_once(browser: Browser, address: str) -> None:
    context = await browser.new_context(viewport=SCREEN)
    visit = await visit_chat(context, address)
    page = visit.page
    await visit.advanced()
    await page.get_by_label("Temperature").fill("0")
    await visit.advanced()
    await visit.ask(FIRST)
    assert len((await wait_until_answered(visit)).split()) > 10
    for question in ("Write a long poem about a river.", "Tell me a story about a grey cat."):
        await page.get_by_role("button", name="New chat").click()
        await visit.ask(question)
    await page.locator(".chat-open").first.click()
    await visit.ask("What is it used for? Give five examples.")
    await expect(page.locator("#chat-list .is-live")).to_have_count(3)
    await asyncio.sleep(2.0)
    await save_screenshot(visit)
    assert len((await wait_until_answered(visit)).split()) > 10
    assert float(await page.locator("#rate").inner_text()) > 1
    assert int(await page.locator("#answer-tokens").inner_text()) > 10
    assert visit.complaints == []
    await context.close()


async def test_a_stopped_answer_stays_and_the_next_one_is_made(
    browser: Browser, address: str
) -> None:
    context = await browser.new_context(viewport=SCREEN)
    visit = await visit_chat(context, address)
    await visit.ask("Tell me a long story about a lighthouse.")
    await visit.wait_for_answer("streaming")
    await asyncio.sleep(0.5)
    await visit.page.keyboard.press("Escape")
    await visit.wait_for_answer("stopped")
    await visit.ask("Say hello.")
    assert await wait_until_answered(visit) != ""
    assert visit.complaints == []
    await context.close()


async def save_screenshot(visit: ChatVisit) -> None:
    """For the documentation: set CLAWSTREAM_CHAT_SCREENSHOT to a path to keep it."""
    path = os.environ.get("CLAWSTREAM_CHAT_SCREENSHOT")
    if path is not None:
        await visit.page.screenshot(path=path)
