"""Connections that break in mid-answer: the Python client and a real gateway, a proxy between."""

from __future__ import annotations

import asyncio
import random

import pytest

from gateway.app import Gateway
from gateway.client import Client, LinkSettings, LostError, connect
from tests.fakes.chaos_proxy import ChaosProxy, Toxics
from tests.fakes.gateway import running_gateway, wait_until
from tests.fakes.text_engine import TextEngine
from tests.fakes.uvloop_runner import on_uvloop

pytestmark = pytest.mark.integration

WORDS = tuple(f" word{number}" for number in range(40))
SETTINGS = LinkSettings(open_timeout_s=0.5, ping_interval_s=0.05, pong_timeout_s=0.3)


def through(proxy: ChaosProxy) -> Client:
    return connect(f"http://127.0.0.1:{proxy.port}", settings=SETTINGS, give_up_after_s=20.0)


async def break_it(proxy: ChaosProxy, client: Client, kind: str) -> None:
    if kind == "reset":
        proxy.reset_all()
    elif kind == "half close":
        proxy.half_close_all(towards_client=True)
    elif kind == "half close to the gateway":
        proxy.half_close_all(towards_client=False)
    else:
        proxy.down = proxy.up = Toxics(is_black_hole=True)
        # What is swallowed is lost: nothing may pass before the client has given up.
        await wait_until(lambda: not client.is_connected)
        proxy.down = proxy.up = Toxics()


@pytest.mark.parametrize("kind", ["reset", "half close", "half close to the gateway", "black hole"])
@on_uvloop
async def test_an_answer_is_whole_however_its_connection_breaks(kind: str) -> None:
    engine, draw = TextEngine(words=WORDS, gap_s=0.01), random.Random(kind)
    async with (
        running_gateway(engine) as gateway,
        ChaosProxy(gateway.port) as proxy,
        through(proxy) as client,
    ):
        breaks_at = set(draw.sample(range(1, len(WORDS) - 10), 3 if kind != "black hole" else 1))
        seqs, text = [], ""
        async for event in client.stream_chat("fake", prompt="x"):
            seqs.append(event.seq)
            text += event.text
            if event.seq in breaks_at:
                await break_it(proxy, client, kind)
        assert text == "".join(WORDS)
        assert seqs == list(range(len(WORDS) + 1))
        assert len(engine.prompts) == 1
        await check_nothing_is_left(gateway)
        assert gateway.sessions.statistics().detached.resumed >= 1
        assert gateway.sessions.statistics().prompts["fake"].results == 1


@on_uvloop
async def test_several_answers_survive_the_same_break() -> None:
    async with (
        running_gateway(TextEngine(words=WORDS, gap_s=0.01)) as gateway,
        ChaosProxy(gateway.port) as proxy,
        through(proxy) as client,
    ):

        async def read() -> str:
            return "".join([event.text async for event in client.stream_chat("fake", prompt="x")])

        async with asyncio.TaskGroup() as tasks:
            reading = [tasks.create_task(read(), name=f"answer {i}") for i in range(6)]
            for _ in range(3):
                await asyncio.sleep(0.1)
                proxy.reset_all()
        assert {task.result() for task in reading} == {"".join(WORDS)}
        await check_nothing_is_left(gateway)


@on_uvloop
async def test_who_stays_away_too_long_is_told_and_the_work_ends() -> None:
    engine = TextEngine(words=["x"] * 1000, gap_s=0.01)
    async with (
        running_gateway(engine, limits={"resume_window_s": 0.2}) as gateway,
        ChaosProxy(gateway.port) as proxy,
        through(proxy) as client,
    ):
        iterator = aiter(client.stream_chat("fake", prompt="x"))
        await anext(iterator)
        proxy.is_refusing = True
        proxy.reset_all()
        await wait_until(lambda: engine.cancelled == 1)
        with pytest.raises(LostError):
            [event async for event in iterator]
        assert gateway.sessions.statistics().detached.expired == 1
        assert gateway.sessions.statistics().prompts["fake"].dropped == {"disconnected": 1}
        proxy.is_refusing = False
        await wait_until(lambda: client.is_connected)


@on_uvloop
async def test_leaving_the_loop_during_an_outage_ends_the_generation() -> None:
    engine = TextEngine(words=["x"] * 1000, gap_s=0.01)
    async with (
        running_gateway(engine) as gateway,
        ChaosProxy(gateway.port) as proxy,
        through(proxy) as client,
    ):
        iterator = aiter(client.stream_chat("fake", prompt="x"))
        await anext(iterator)
        proxy.is_refusing = True
        proxy.reset_all()
        await wait_until(lambda: not client.is_connected)
        await iterator.aclose()
        proxy.is_refusing = False
        await wait_until(lambda: engine.cancelled == 1)
        await check_nothing_is_left(gateway)


@on_uvloop
async def test_a_shutdown_waits_for_nobody() -> None:
    engine = TextEngine(words=["x"] * 1000, gap_s=0.01)
    async with (
        running_gateway(engine) as gateway,
        ChaosProxy(gateway.port) as proxy,
        through(proxy) as client,
    ):
        iterator = aiter(client.stream_chat("fake", prompt="x"))
        await anext(iterator)
        proxy.is_refusing = True
        proxy.reset_all()
        await wait_until(lambda: gateway.sessions.statistics().detached.detached == 1)
        await gateway.aclose()
        assert gateway.sessions.statistics().detached.given_up == 1
        gateway.sessions.check_integrity()


async def check_nothing_is_left(gateway: Gateway) -> None:
    await wait_until(lambda: gateway.sessions.statistics().streams == 0)
    gateway.sessions.check_integrity()
