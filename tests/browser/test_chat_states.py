"""What the Chat tab says when something is missing, refused, lost or slow; tabs and access."""

from __future__ import annotations

import asyncio

import pytest
import pytest_asyncio
from playwright.async_api import Browser, BrowserContext, ViewportSize, expect

from tests.browser.chat_visit import ChatVisit, visit_chat, wait_for
from tests.browser.conftest import Visit
from tests.fakes.page_gateway import FakePageGateway

pytestmark = pytest.mark.browser

PHONE = ViewportSize(width=360, height=740)
NAME_FOCUSED = "document.activeElement.id || document.activeElement.className"


@pytest_asyncio.fixture(loop_scope="session")
async def chat(context: BrowserContext, gateway: FakePageGateway) -> ChatVisit:
    gateway.behaviour.kinds = ("detect", "chat")
    return await visit_chat(context, gateway.url)


async def test_models_appear_in_their_own_tab_only(chat: ChatVisit) -> None:
    assert await chat.page.locator("#model option").all_inner_texts() == ["squares · objects"]
    assert await chat.page.locator("#chat-model option").all_text_contents() == ["parrot"]


async def test_without_a_language_model_the_tab_says_how_to_get_one(
    context: BrowserContext, gateway: FakePageGateway
) -> None:
    visit = await visit_chat(context, gateway.url, "absent")
    notice = await visit.page.locator("#chat-notice").inner_text()
    assert "No language model is served here" in notice
    assert "clawstream demo --chat" in notice
    assert "make demo-chat" in notice
    assert await visit.page.locator("#send").is_disabled()


async def test_a_gateway_with_language_models_only_opens_in_chat(
    context: BrowserContext, gateway: FakePageGateway
) -> None:
    gateway.behaviour.kinds = ("chat",)
    visit = ChatVisit(await context.new_page())
    await visit.page.goto(gateway.url)
    await visit.wait_for_state("ready")
    await expect(visit.page.get_by_role("tab", name="Chat", selected=True)).to_be_visible()
    await visit.page.get_by_role("tab", name="Video").click()
    assert "No video model is served here" in await visit.notice()


async def test_warming_model_is_waited_for(
    context: BrowserContext, gateway: FakePageGateway
) -> None:
    gateway.behaviour.kinds = ("chat",)
    gateway.behaviour.is_ready = False
    visit = await visit_chat(context, gateway.url, "warming")
    assert "warming up" in await visit.page.locator("#chat-notice").inner_text()
    gateway.behaviour.is_ready = True
    await visit.wait_for_state("ready")
    await visit.ask("Hello?")
    await visit.wait_for_answer()


async def test_refused_prompt_is_told_and_can_be_asked_again(
    chat: ChatVisit, gateway: FakePageGateway
) -> None:
    gateway.behaviour.speech.error = "The prompt is longer than the model's context"
    await chat.ask("Long?")
    await chat.wait_for_answer("failed")
    assert "longer than the model's context" in await chat.page.locator(".note").inner_text()
    gateway.behaviour.speech.error = None
    await chat.page.get_by_role("button", name="Ask again").click()
    await chat.wait_for_answer()
    assert await chat.page.locator(".bubble").all_inner_texts() == ["Long?"]


async def test_more_chats_at_once_than_the_gateway_takes_are_told(
    chat: ChatVisit, gateway: FakePageGateway
) -> None:
    gateway.behaviour.speech.ends.clear()
    for number in range(4):
        await chat.page.get_by_role("button", name="New chat").click()
        await chat.ask(f"Question {number}?")
    await chat.wait_for_answer("failed")
    assert "no more chats at once" in await chat.page.locator(".note").inner_text()
    assert len(gateway.prompts) == 3


async def test_lost_connection_keeps_the_text_and_comes_back(
    chat: ChatVisit, gateway: FakePageGateway
) -> None:
    gateway.behaviour.speech.gap_s = 0.3
    await chat.ask("Break?")
    await chat.wait_for_answer("streaming")
    gateway.behaviour.accepts = False
    await gateway.close_sockets(1012)
    await chat.wait_for_state("reconnecting")
    await chat.page.locator("#chat-banner", has_text="Connection lost").wait_for()
    await chat.wait_for_answer("failed")
    assert (await chat.answers())[0].startswith("Streams")
    assert await chat.page.locator("#send").is_disabled()
    gateway.behaviour.accepts = True
    gateway.behaviour.speech.gap_s = 0.01
    await chat.wait_for_state("ready")
    await chat.page.locator("#chat-banner").wait_for(state="hidden")
    await chat.page.get_by_role("button", name="Ask again").click()
    await chat.wait_for_answer()


async def test_gateway_that_is_away_keeps_the_question_until_it_is_back(
    chat: ChatVisit, gateway: FakePageGateway
) -> None:
    gateway.behaviour.accepts = False
    await chat.ask("Are you there?")
    await chat.wait_for_state("reconnecting")
    gateway.behaviour.accepts = True
    await chat.wait_for_answer()


async def test_question_that_waits_for_a_connection_can_be_stopped(
    chat: ChatVisit, gateway: FakePageGateway
) -> None:
    gateway.behaviour.accepts = False
    await chat.ask("Are you there?")
    await chat.wait_for_state("reconnecting")
    await chat.page.keyboard.press("Escape")
    await chat.wait_for_answer("stopped")
    gateway.behaviour.accepts = True
    await chat.wait_for_state("ready")
    await asyncio.sleep(0.3)
    assert gateway.prompts == []


async def test_key_is_asked_for_in_the_tab_that_is_shown(
    context: BrowserContext, gateway: FakePageGateway
) -> None:
    gateway.behaviour.kinds = ("detect", "chat")
    gateway.behaviour.key = "right"
    visit = await visit_chat(context, gateway.url, "locked")
    page = visit.page
    await page.wait_for_function("document.activeElement.id === 'chat-key'")
    await page.keyboard.type("wrong")
    await page.keyboard.press("Enter")
    await page.get_by_role("heading", name="not accepted").wait_for()
    await page.locator("#chat-key").fill("right")
    await page.keyboard.press("Enter")
    await visit.wait_for_state("ready")
    await visit.ask("Open?")
    await visit.wait_for_answer()
    await page.get_by_role("tab", name="Video").click()
    await visit.wait_for_state("idle")


async def test_tabs_work_by_keyboard_and_by_address(
    context: BrowserContext, gateway: FakePageGateway
) -> None:
    gateway.behaviour.kinds = ("detect", "chat")
    visit = Visit(await context.new_page())
    page = visit.page
    await page.goto(gateway.url)
    await visit.wait_for_state("idle")
    await page.get_by_role("tab", name="Video").focus()
    await page.keyboard.press("ArrowRight")
    await expect(page.get_by_role("tabpanel", name="Chat")).to_be_visible()
    await expect(page.get_by_role("tabpanel", name="Video")).to_be_hidden()
    assert await page.evaluate("document.activeElement.id") == "tab-chat"
    await page.keyboard.press("Home")
    await expect(page.get_by_role("tab", name="Video")).to_have_attribute("aria-selected", "true")
    await page.goto(f"{gateway.url}#chat")
    await expect(page.get_by_role("tab", name="Chat")).to_have_attribute("aria-selected", "true")
    assert visit.complaints == []


async def test_everything_is_reached_in_order_by_keyboard(chat: ChatVisit) -> None:
    names = []
    for _ in range(9):
        await chat.page.keyboard.press("Tab")
        names.append(await chat.page.evaluate(NAME_FOCUSED))
    assert names[:5] == ["skip", "tab-chat", "new-chat", "chat-open", "log"]
    assert names[5:8] == ["quiet", "quiet", "quiet"]
    assert names[8] == "question"


async def test_controls_have_names_and_roles(chat: ChatVisit) -> None:
    page = chat.page
    await chat.advanced()
    await expect(page.get_by_role("navigation", name="Chats")).to_be_visible()
    await expect(page.get_by_role("log", name="Messages")).to_be_visible()
    await expect(page.get_by_role("textbox", name="Your question")).to_be_editable()
    await expect(page.get_by_role("combobox", name="Language model")).to_be_enabled()
    await expect(page.get_by_role("slider", name="Temperature")).to_be_visible()
    await expect(page.get_by_role("spinbutton", name="At most this many tokens")).to_be_visible()
    await expect(page.get_by_role("textbox", name="System prompt")).to_be_visible()


async def test_answers_are_spoken_by_the_sentence(
    chat: ChatVisit, gateway: FakePageGateway
) -> None:
    spoken = """() => {
      const said = window.said = [];
      const region = document.getElementById("status");
      new MutationObserver(() => said.push(region.textContent))
        .observe(region, { childList: true, characterData: true, subtree: true });
    }"""
    await chat.page.evaluate(spoken)
    await chat.ask("Speak?")
    await chat.wait_for_answer()
    await chat.page.wait_for_function("window.said.length >= 2")
    said = await chat.page.evaluate("window.said")
    assert said == ["Streams carry bytes in order.", "Sockets are their ends."]
    assert await chat.page.locator("#log").get_attribute("aria-live") == "off"


async def test_phone_shows_one_column_without_sideways_scrolling(
    browser: Browser, gateway: FakePageGateway
) -> None:
    gateway.behaviour.kinds = ("detect", "chat")
    context = await browser.new_context(viewport=PHONE)
    visit = await visit_chat(context, gateway.url)
    for number in range(3):
        await visit.page.get_by_role("button", name="New chat").click()
        await visit.ask(f"Question {number} of somebody on a phone who writes a lot?")
        await visit.wait_for_answer()
    await visit.advanced()
    assert await visit.page.evaluate("document.documentElement.scrollWidth") == PHONE["width"]
    heights = await visit.page.locator("button:visible, select:visible").evaluate_all(
        "controls => controls.map(control => control.getBoundingClientRect().height)"
    )
    assert min(heights) >= 44
    await context.close()


async def test_an_old_answer_is_not_redrawn_by_a_new_one(
    chat: ChatVisit, gateway: FakePageGateway
) -> None:
    await chat.ask("First?")
    await chat.wait_for_answer()
    await chat.page.evaluate(
        "() => { window.first = document.querySelector('.answer .text').firstChild; }"
    )
    await chat.ask("Second?")
    await chat.wait_for_answer()
    assert await chat.page.evaluate("window.first.isConnected")
    await wait_for(lambda: len(gateway.prompts) == 2)
