"""What the chat tests share: a visitor in the Chat tab, who asks and reads."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

import pytest
from playwright.async_api import BrowserContext, expect

from tests.browser.conftest import Visit

LIMIT_MS = 15_000


class ChatVisit(Visit):
    """One visitor in the Chat tab."""

    async def open(self, url: str, state: str = "ready") -> None:
        await self.page.goto(f"{url}#chat")
        await self.wait_for_state(state)

    async def ask(self, question: str) -> None:
        await self.page.get_by_label("Your question").fill(question)
        await self.page.keyboard.press("Enter")

    async def answers(self) -> list[str]:
        return await self.page.locator(".answer .text").all_inner_texts()

    async def wait_for_answer(self, state: str = "done") -> None:
        """Until the newest answer is done, stopped, failed or streaming."""
        newest = self.page.locator(".answer").last
        await expect(newest).to_have_attribute("data-state", state, timeout=LIMIT_MS)

    async def advanced(self) -> None:
        await self.page.locator("#composer summary").click()


async def visit_chat(context: BrowserContext, url: str, state: str = "ready") -> ChatVisit:
    visit = ChatVisit(await context.new_page())
    await visit.open(url, state)
    return visit


async def wait_for(condition: Callable[[], bool], timeout_s: float = 10.0) -> None:
    """Poll: what is waited for happens in the browser."""
    for _ in range(round(timeout_s / 0.05)):
        if condition():
            return
        await asyncio.sleep(0.05)
    pytest.fail(f"did not happen within {timeout_s} s")
