"""The chat page on a real gateway whose connection breaks in mid-answer: its text is whole."""

from __future__ import annotations

import pytest
from playwright.async_api import BrowserContext, expect

import gateway.app
from engine.manifest import Manifest
from gateway.serving import Serving
from tests.browser.chat_visit import visit_chat, wait_for
from tests.fakes.chaos_proxy import ChaosProxy
from tests.fakes.gateway import running_gateway
from tests.fakes.text_engine import TextEngine

pytestmark = pytest.mark.browser

WORDS = tuple(f" word{number}" for number in range(80))


async def test_a_chat_survives_broken_connections(
    context: BrowserContext, monkeypatch: pytest.MonkeyPatch
) -> None:
    manifests = {"fake": Manifest(name="fake", kind="chat")}
    monkeypatch.setattr(gateway.app, "Serving", lambda engine, _: Serving(engine, manifests))
    engine = TextEngine(words=WORDS, gap_s=0.03)
    async with running_gateway(engine) as served, ChaosProxy(served.port) as proxy:
        visit = await visit_chat(context, f"http://127.0.0.1:{proxy.port}/")
        await visit.ask("Say something")
        newest = visit.page.locator(".answer .text").last
        for word in ("word9 ", "word30 "):
            await expect(newest).to_contain_text(word)
            num_resumed = served.sessions.statistics().detached.resumed
            proxy.reset_all()
            await wait_for(
                lambda before=num_resumed: (  # type: ignore[misc]
                    served.sessions.statistics().detached.resumed > before
                )
            )
        await visit.wait_for_answer()
        assert (await visit.answers())[-1].split() == [word.strip() for word in WORDS]
        assert len(engine.prompts) == 1
