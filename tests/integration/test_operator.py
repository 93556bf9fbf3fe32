"""An operator and the pressure ladder, over real sockets."""

from __future__ import annotations

import asyncio
from typing import Any

import aiohttp
import pytest
from typer.testing import CliRunner

from gateway.app import Gateway
from gateway.cli import app
from gateway.client import Event, connect
from tests.fakes.gateway import running_gateway, wait_until
from tests.fakes.uvloop_runner import on_uvloop

pytestmark = pytest.mark.integration

KEYS = {
    "server": {
        "api_keys": ["user"],
        "standard_keys": ["plain"],
        "background_keys": ["batch"],
        "admin_keys": ["boss"],
    }
}


async def say(gateway: Gateway, body: Any, **headers: str) -> tuple[int, dict[str, Any]]:
    url = f"{gateway.url}v1/admin/say"
    async with (
        aiohttp.ClientSession() as client,
        client.post(url, json=body, headers=headers) as response,
    ):
        return response.status, await response.json(content_type=None)


@on_uvloop
async def test_what_an_operator_says_reaches_every_client() -> None:
    events: list[Event] = []
    async with running_gateway() as gateway, connect(gateway.url, on_event=events.append):
        assert await say(gateway, {"text": "Restarting soon"}) == (200, {"sessions": 1})
        await wait_until(lambda: any(event.name == "message" for event in events))
    assert [event.detail for event in events if event.name == "message"] == ["Restarting soon"]


@pytest.mark.parametrize(
    ("headers", "status"),
    [
        ({"Authorization": "Bearer boss"}, 200),
        ({"X-API-Key": "boss"}, 200),
        ({"Authorization": "Bearer user"}, 403),
        ({"Authorization": "Bearer batch"}, 403),
        ({"Authorization": "Bearer nobody"}, 401),
        ({}, 401),
    ],
)
def test_with_keys_only_an_operators_key_will_do(headers: dict[str, str], status: int) -> None:
    @on_uvloop
    async def run() -> None:
        async with running_gateway(**KEYS) as gateway:
            assert (await say(gateway, {"text": "x"}, **headers))[0] == status

    run()


@on_uvloop
async def test_without_keys_a_proxy_speaks_for_nobody() -> None:
    async with running_gateway() as gateway:
        for header in ("X-Forwarded-For", "forwarded", "Via", "x-real-ip"):
            assert (await say(gateway, {"text": "x"}, **{header: "192.0.2.1"}))[0] == 403
        foreign = {"Origin": "http://evil.example"}
        assert (await say(gateway, {"text": "x"}, **foreign))[0] == 403
        assert (await say(gateway, {"text": "x"}))[0] == 200


@pytest.mark.parametrize(
    "body",
    [
        {},
        {"text": ""},
        {"text": "x" * 2001},
        {"text": "x", "stream": 1},
        {"text": "x", "colour": "red"},
        {"text": "x", "session": "s", "stream": -1},
        [],
        {"text": "x" * 20_000},
    ],
)
def test_what_is_no_message_is_refused(body: Any) -> None:
    @on_uvloop
    async def run() -> None:
        async with running_gateway() as gateway:
            status, problem = await say(gateway, body)
            assert status in (400, 413)
            assert problem["type"].startswith("urn:clawstream:problem:")

    run()


@on_uvloop
async def test_a_session_that_is_not_there_is_not_found() -> None:
    async with running_gateway() as gateway:
        assert (await say(gateway, {"text": "x", "session": "none"}))[0] == 404


@on_uvloop
async def test_an_operator_who_never_stops_is_slowed_down() -> None:
    async with running_gateway() as gateway:
        statuses = [(await say(gateway, {"text": "x"}))[0] for _ in range(14)]
    assert statuses[:10] == [200] * 10
    assert statuses[-1] == 429


@on_uvloop
async def test_the_command_says_it_and_tells_how_many_heard() -> None:
    def run(*arguments: str) -> tuple[int, str]:
        result = CliRunner().invoke(app, ["say", *arguments], env={"NO_COLOR": "1"})
        return result.exit_code, result.output

    async with running_gateway() as gateway:
        url = gateway.url.replace("http", "ws")
        async with connect(gateway.url):
            code, output = await asyncio.to_thread(run, "hello", "--url", url)
            assert (code, output) == (0, "told 1 session\n")
        code, output = await asyncio.to_thread(run, "hello", "--url", url, "--session", "none")
        assert code == 3
        assert "no such session" in output
    code, output = await asyncio.to_thread(run, "hello", "--url", "ws://127.0.0.1:1")
    assert code == 4
    assert await asyncio.to_thread(run, "hello", "--stream", "1") == (
        2,
        "error: --stream needs --session: every session has its own\n",
    )


@on_uvloop
async def test_metrics_show_the_level_and_why() -> None:
    async with (
        running_gateway() as gateway,
        aiohttp.ClientSession() as client,
        client.get(f"{gateway.url}metrics") as response,
    ):
        text = await response.text()
    assert "clawstream_service_level 0.0" in text
    assert 'clawstream_service_level_seconds_total{level="normal"}' in text
    assert 'clawstream_load{signal="realtime"}' in text
    assert 'clawstream_requests_shed_total{priority="standard"} 0.0' in text


@on_uvloop
async def test_a_picture_over_http_is_served_in_its_keys_tier() -> None:
    async with running_gateway(**KEYS) as gateway:
        assert gateway.engine.statistics().models
        async with aiohttp.ClientSession() as client:
            url = f"{gateway.url}v1/infer/fake"
            async with client.post(url, data=b"x", headers={"X-API-Key": "batch"}) as response:
                assert response.status == 415
