"""The Chat tab: answers that stream, several at once, what is sent, what is measured."""

from __future__ import annotations

import asyncio

import pytest
import pytest_asyncio
from playwright.async_api import BrowserContext, expect

from tests.browser.chat_visit import ChatVisit, visit_chat, wait_for
from tests.fakes.page_gateway import FakePageGateway

pytestmark = pytest.mark.browser

ANSWER = "Streams carry bytes in order. Sockets are their ends."


@pytest_asyncio.fixture(loop_scope="session")
async def chat(context: BrowserContext, gateway: FakePageGateway) -> ChatVisit:
    gateway.behaviour.kinds = ("detect", "chat")
    return await visit_chat(context, gateway.url)


async def test_an_answer_streams_in(chat: ChatVisit, gateway: FakePageGateway) -> None:
    gateway.behaviour.speech.gap_s = 0.1
    await chat.ask("What is a stream?")
    await chat.wait_for_answer("streaming")
    part = (await chat.answers())[0]
    assert 0 < len(part) < len(ANSWER)
    assert ANSWER.startswith(part)
    await chat.wait_for_answer()
    assert await chat.answers() == [ANSWER]
    assert gateway.prompts[0]["messages"] == [{"role": "user", "content": "What is a stream?"}]
    assert gateway.opened[-1]["kind"] == "tokens"
    assert chat.complaints == []


async def test_markup_in_questions_and_answers_stays_text(
    chat: ChatVisit, gateway: FakePageGateway
) -> None:
    markup = "<img src=x onerror=alert(1)>  <b>bold</b> &amp; ```js```"
    gateway.behaviour.speech.answer = markup
    await chat.ask(markup)
    await chat.wait_for_answer()
    assert await chat.answers() == [markup]
    assert await chat.page.locator(".bubble").inner_text() == markup
    assert await chat.page.locator("#turns :is(img, b)").count() == 0
    assert chat.complaints == []


async def test_lines_of_an_answer_are_kept(chat: ChatVisit, gateway: FakePageGateway) -> None:
    gateway.behaviour.speech.answer = "One\n\n  two\nthree"
    await chat.ask("Lines?")
    await chat.wait_for_answer()
    assert await chat.answers() == ["One\n\n  two\nthree"]


async def test_numbers_measure_the_answer(chat: ChatVisit, gateway: FakePageGateway) -> None:
    gateway.behaviour.speech.gap_s = 0.05
    await chat.ask("Numbers?")
    await chat.wait_for_answer()
    page = chat.page
    assert 10 < float(await page.locator("#rate").inner_text()) < 21
    assert 45 <= int(await page.locator("#ttft").inner_text()) < 1000
    assert 45 <= int(await page.locator("#gap-p50").inner_text()) < 100
    for element, expected in (
        ("prompt-tokens", "21"), ("answer-tokens", "9"), ("cached-tokens", "16")
    ):  # fmt: skip
        assert await page.locator(f"#{element}").inner_text() == expected
    assert "parrot · 9 tokens · " in await page.locator(".note").inner_text()
    drawn = """() => {
      const { width, height } = document.getElementById("gaps-plot");
      const context = document.getElementById("gaps-plot").getContext("2d");
      return context.getImageData(0, 0, width, height).data.some((value) => value > 0);
    }"""
    assert await page.evaluate(drawn)


async def test_what_was_said_goes_along_with_the_next_question(
    chat: ChatVisit, gateway: FakePageGateway
) -> None:
    await chat.ask("First?")
    await chat.wait_for_answer()
    await chat.ask("Second?")
    await wait_for(lambda: len(gateway.prompts) == 2)
    assert gateway.prompts[1]["messages"] == [
        {"role": "user", "content": "First?"},
        {"role": "assistant", "content": ANSWER},
        {"role": "user", "content": "Second?"},
    ]
    assert len(gateway.opened) == 1


async def test_advanced_choices_reach_the_gateway(
    chat: ChatVisit, gateway: FakePageGateway
) -> None:
    page = chat.page
    await chat.advanced()
    await page.get_by_label("System prompt").fill("Be brief.")
    await page.get_by_label("Temperature").fill("0")
    await page.get_by_label("At most this many tokens").fill("3")
    await chat.ask("Short?")
    await chat.wait_for_answer()
    (prompt,) = gateway.prompts
    assert prompt["messages"][0] == {"role": "system", "content": "Be brief."}
    assert prompt["sampling"] == {"temperature": 0, "max_tokens": 3}
    assert "cut at the token limit" in await page.locator(".note").inner_text()
    assert await chat.answers() == ["Streams carry bytes"]


async def test_stop_button_and_escape_stop_the_answer(
    chat: ChatVisit, gateway: FakePageGateway
) -> None:
    gateway.behaviour.speech.gap_s = 0.2
    await chat.ask("Long?")
    await chat.wait_for_answer("streaming")
    await chat.page.get_by_role("button", name="Stop").click()
    await chat.wait_for_answer("stopped")
    assert "stopped" in await chat.page.locator(".note").last.inner_text()
    await chat.ask("Again?")
    await chat.wait_for_answer("streaming")
    await chat.page.keyboard.press("Escape")
    await chat.wait_for_answer("stopped")
    before = await chat.answers()
    await asyncio.sleep(0.5)
    assert await chat.answers() == before


async def test_shift_enter_makes_a_line_and_enter_sends(
    chat: ChatVisit, gateway: FakePageGateway
) -> None:
    page = chat.page
    await page.get_by_label("Your question").click()
    await page.keyboard.type("One")
    await page.keyboard.press("Shift+Enter")
    await page.keyboard.type("two")
    assert gateway.prompts == []
    await page.keyboard.press("Enter")
    await chat.wait_for_answer()
    assert gateway.prompts[0]["messages"][0]["content"] == "One\ntwo"
    assert await page.get_by_label("Your question").input_value() == ""


async def test_enter_while_answering_keeps_the_question(
    chat: ChatVisit, gateway: FakePageGateway
) -> None:
    gateway.behaviour.speech.gap_s = 0.1
    await chat.ask("One?")
    await chat.ask("Two?")
    assert await chat.page.get_by_label("Your question").input_value() == "Two?"
    await chat.wait_for_answer()
    assert len(gateway.prompts) == 1


async def test_several_chats_are_answered_at_once_on_one_connection(
    chat: ChatVisit, gateway: FakePageGateway
) -> None:
    page = chat.page
    gateway.behaviour.speech.ends.clear()
    await chat.ask("First chat?")
    await page.get_by_role("button", name="New chat").click()
    await chat.ask("Second chat?")
    await wait_for(lambda: len(gateway.prompts) == 2)
    await expect(page.locator("#chat-list .is-live")).to_have_count(2)
    assert len(gateway.opened) == 1
    gateway.behaviour.speech.ends.set()
    await chat.wait_for_answer()
    await page.get_by_role("button", name="First chat?", exact=True).click()
    await expect(page.locator(".bubble")).to_have_text("First chat?")
    await chat.wait_for_answer()
    assert await chat.answers() == [ANSWER]


async def test_closing_a_chat_stops_its_answer(chat: ChatVisit, gateway: FakePageGateway) -> None:
    page = chat.page
    gateway.behaviour.speech.ends.clear()
    await chat.ask("First chat?")
    await page.get_by_role("button", name="New chat").click()
    await page.get_by_role("button", name="Close First chat?").click()
    await chat.wait_for_state("ready")  # cancelled: nothing is answered any more
    assert await page.locator("#chat-list li").count() == 1
    assert await page.evaluate("document.activeElement.id") == "question"


async def test_ideas_start_an_empty_chat(chat: ChatVisit, gateway: FakePageGateway) -> None:
    await chat.page.get_by_role("button", name="Write a short poem").click()
    await chat.wait_for_answer()
    assert gateway.prompts[0]["messages"][0]["content"] == "Write a short poem about a river."
    assert await chat.page.locator("#chat-notice").is_hidden()


async def test_the_log_follows_the_text_until_the_reader_scrolls_up(
    chat: ChatVisit, gateway: FakePageGateway
) -> None:
    speech = gateway.behaviour.speech
    speech.answer, speech.gap_s = "line\n" * 200, 0.01
    await chat.ask("Long?")
    log = chat.page.locator("#log")
    at_end = "log => log.scrollHeight - log.scrollTop - log.clientHeight < 60"
    await asyncio.sleep(1.2)
    assert await log.evaluate("log => log.scrollTop") > 0
    assert await log.evaluate(at_end)
    await log.evaluate("log => { log.scrollTop = 0; }")
    await chat.wait_for_answer()
    assert await log.evaluate("log => log.scrollTop") == 0


async def test_what_was_shown_is_acknowledged(chat: ChatVisit, gateway: FakePageGateway) -> None:
    await chat.ask("Acks?")
    await chat.wait_for_answer()
    await wait_for(lambda: any(ack["seq"] == 9 for ack in gateway.acks))
    await wait_for(lambda: gateway.acks[-1].get("rendered_seq") == 8)


async def test_video_and_chat_run_side_by_side(chat: ChatVisit, gateway: FakePageGateway) -> None:
    page = chat.page
    gateway.behaviour.speech.ends.clear()
    await chat.ask("While I film?")
    await page.get_by_role("tab", name="Video").click()
    await chat.start()
    assert await page.locator("#tab-chat.is-live").count() == 1
    assert {opened["kind"] for opened in gateway.opened} == {"frames", "tokens"}
    gateway.behaviour.speech.ends.set()
    await expect(page.locator("#tab-chat.is-live")).to_have_count(0)
    await chat.wait_for_state("running")
