"""Who gets in: Origin, Host, subprotocol, keys, tickets, places, TLS. Over real sockets."""

from __future__ import annotations

import json
import ssl
import subprocess
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import aiohttp
import pytest

from gateway.app import Gateway
from gateway.config_sections import ServerConfig
from gateway.errors import ConfigError
from gateway.net.server import tls_context
from gateway.wire.messages import SUBPROTOCOL
from tests.fakes.gateway import running_gateway, wait_until
from tests.fakes.uvloop_runner import on_uvloop

pytestmark = pytest.mark.integration

KEYS = {"api_keys": ["first-key", "second-key"]}


@asynccontextmanager
async def connected(
    gateway: Gateway, *, query: str = "", protocols: tuple[str, ...] = (), **headers: str
) -> AsyncIterator[aiohttp.ClientWebSocketResponse]:
    named = {name.replace("_", "-"): value for name, value in headers.items()}
    async with (
        aiohttp.ClientSession() as client,
        client.ws_connect(
            f"{gateway.url}v1/stream{query}", headers=named, protocols=protocols
        ) as socket,
    ):
        yield socket


async def status_of(gateway: Gateway, **options: str) -> int:
    """101, or the status of the refusal, which must be a problem."""
    try:
        async with connected(gateway, **options):
            return 101
    except aiohttp.WSServerHandshakeError as error:
        is_problem = error.headers and "problem+json" in error.headers["Content-Type"]
        return error.status if is_problem else 0


async def hello(socket: aiohttp.ClientWebSocketResponse, **fields: str) -> str:
    """The type of the answer, or the close code."""
    await socket.send_json({"type": "hello", **fields})
    message = await socket.receive(timeout=5)
    if message.type is aiohttp.WSMsgType.TEXT and json.loads(message.data)["type"] == "error":
        message = await socket.receive(timeout=5)
    if message.type is aiohttp.WSMsgType.CLOSE:
        return str(message.data)
    return str(json.loads(message.data)["type"])


@on_uvloop
async def test_origin_table() -> None:
    async with running_gateway(server={"allowed_origins": ["https://app.example"]}) as gateway:
        own = gateway.url.rstrip("/")
        assert await status_of(gateway) == 101
        assert await status_of(gateway, Origin=own) == 101
        assert await status_of(gateway, Origin="https://app.example") == 101
        for origin in (
            "null",
            "http://evil.example",
            f"{own}.evil.example",
            f"http://127.0.0.1:{gateway.port + 1}",
            own.replace("http", "https"),
        ):
            assert await status_of(gateway, Origin=origin) == 403
        rebound = f"evil.example:{gateway.port}"
        assert await status_of(gateway, Host=rebound, Origin=f"http://{rebound}") == 403
        async with aiohttp.ClientSession() as client:
            foreign = {"Origin": "http://evil.example"}
            async with client.post(f"{gateway.url}v1/infer/fake", headers=foreign) as response:
                assert response.status == 403


@on_uvloop
async def test_subprotocol_rule() -> None:
    async with running_gateway() as gateway:
        async with connected(gateway) as socket:
            assert socket.protocol is None
        async with connected(gateway, protocols=("other", SUBPROTOCOL)) as socket:
            assert socket.protocol == SUBPROTOCOL
        with pytest.raises(aiohttp.WSServerHandshakeError) as caught:
            async with connected(gateway, protocols=("clawstream.v9",)):
                pass
        assert caught.value.status == 426
        async with (
            aiohttp.ClientSession() as client,
            client.get(f"{gateway.url}v1/stream") as response,
        ):
            assert (response.status, response.headers["Upgrade"]) == (426, "websocket")


@on_uvloop
async def test_compression_is_not_accepted() -> None:
    async with (
        running_gateway() as gateway,
        aiohttp.ClientSession() as client,
        client.ws_connect(f"{gateway.url}v1/stream", compress=15) as socket,
    ):
        assert not socket.compress


@on_uvloop
async def test_auth_table() -> None:
    async with running_gateway(server=KEYS) as gateway:
        assert await status_of(gateway, Authorization="Bearer first-key") == 101
        assert await status_of(gateway, X_API_Key="second-key") == 101
        assert await status_of(gateway, Authorization="Bearer third-key") == 401
        assert await status_of(gateway, X_API_Key="first-keyx") == 401
        async with connected(gateway, X_API_Key="first-key") as socket:
            assert await hello(socket) == "welcome"
        async with connected(gateway) as socket:
            assert await hello(socket, token="second-key") == "welcome"
        for fields in ({}, {"token": "third-key"}):
            async with connected(gateway) as socket:
                assert await hello(socket, **fields) == "4501"


@on_uvloop
async def test_http_needs_the_key_but_health_and_page_do_not() -> None:
    async with running_gateway(server=KEYS) as gateway, aiohttp.ClientSession() as client:
        for path, open_to_all in (
            ("v1/models", False),
            ("metrics", False),
            ("healthz", True),
            ("readyz", True),
            ("", True),
        ):
            async with client.get(gateway.url + path) as response:
                assert response.status == (200 if open_to_all else 401), path
            headers = {"Authorization": "Bearer first-key"}
            async with client.get(gateway.url + path, headers=headers) as response:
                assert response.status == 200, path


@on_uvloop
async def test_ticket_opens_one_connection(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("DEBUG")
    async with running_gateway(server=KEYS) as gateway, aiohttp.ClientSession() as client:
        async with client.post(f"{gateway.url}v1/tickets") as response:
            assert response.status == 401
        headers = {"X-API-Key": "first-key"}
        async with client.post(f"{gateway.url}v1/tickets", headers=headers) as response:
            assert response.headers["Cache-Control"] == "no-store"
            issued = await response.json()
        assert issued["expires_in_s"] == 30
        query = f"?ticket={issued['ticket']}"
        async with connected(gateway, query=query) as socket:
            assert await hello(socket) == "welcome"
        assert await status_of(gateway, query=query) == 401
        assert await status_of(gateway, query="?ticket=made-up") == 401
    for secret in (issued["ticket"], "first-key", "second-key"):
        assert secret not in caplog.text


@on_uvloop
async def test_connections_beyond_the_limit_are_told_to_come_back() -> None:
    async with running_gateway(limits={"max_connections": 2}) as gateway:
        async with connected(gateway), connected(gateway):
            with pytest.raises(aiohttp.WSServerHandshakeError) as caught:
                async with connected(gateway):
                    pass
            assert caught.value.status == 503
            assert caught.value.headers is not None
            assert int(caught.value.headers["Retry-After"]) >= 1
        await wait_until(lambda: gateway.connections.statistics().open == 0)
        assert await status_of(gateway) == 101


@on_uvloop
async def test_two_hundred_cycles_leave_every_place_free() -> None:
    async with running_gateway(limits={"max_connections": 4}) as gateway:
        for _ in range(200):
            async with connected(gateway):
                pass
            await wait_until(lambda: gateway.connections.statistics().open < 4)
        assert gateway.connections.statistics().refused == 0


OPENSSL = (
    "openssl req -x509 -newkey ec -pkeyopt ec_paramgen_curve:P-256 -nodes -days 1 "
    "-subj /CN=localhost -addext subjectAltName=IP:127.0.0.1 -keyout key.pem -out cert.pem"
)


@pytest.fixture
def tls_server(tmp_path: Path) -> dict[str, str]:
    subprocess.run(OPENSSL.split(), cwd=tmp_path, check=True, capture_output=True)
    return {"tls_cert": str(tmp_path / "cert.pem"), "tls_key": str(tmp_path / "key.pem")}


@on_uvloop
async def test_tls_serves_pages_and_streams(tls_server: dict[str, str]) -> None:
    async with running_gateway(server=tls_server) as gateway, aiohttp.ClientSession() as client:
        context = ssl.create_default_context(cafile=tls_server["tls_cert"])
        assert gateway.url.startswith("https://")
        url, own = f"{gateway.url}v1/stream", gateway.url.rstrip("/")
        async with client.ws_connect(url, ssl=context, origin=own) as socket:
            assert await hello(socket) == "welcome"


def test_tls_is_1_2_or_newer(tls_server: dict[str, str], tmp_path: Path) -> None:
    context = tls_context(ServerConfig(**tls_server))
    assert context is not None
    assert context.minimum_version is ssl.TLSVersion.TLSv1_2
    assert tls_context(ServerConfig()) is None
    with pytest.raises(ConfigError, match=r"^server\.tls_cert"):
        tls_context(ServerConfig(tls_cert=str(tmp_path / "absent"), tls_key=tls_server["tls_key"]))
