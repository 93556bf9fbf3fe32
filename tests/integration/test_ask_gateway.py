"""What commands say of a gateway that refuses, and of what is no gateway."""

from __future__ import annotations

import asyncio

import pytest

from gateway.commands.ask_gateway import get_text, post_json
from gateway.commands.exits import CommandError, ExitCode
from tests.fakes.gateway import running_gateway
from tests.fakes.uvloop_runner import on_uvloop

pytestmark = pytest.mark.integration

SAY = "/v1/admin/say"


async def refused(url: str, path: str, api_key: str | None) -> CommandError:
    with pytest.raises(CommandError) as caught:
        await asyncio.to_thread(post_json, url, path, api_key, {"text": "x", "session": "none"})
    return caught.value


@on_uvloop
async def test_a_refusal_is_told_in_the_gateways_own_words() -> None:
    keys = {"api_keys": ["user"], "admin_keys": ["boss"]}
    async with running_gateway(server=keys) as gateway:
        nobody = await refused(gateway.url, SAY, None)
        user = await refused(gateway.url, SAY, "user")
        boss = await refused(gateway.url, SAY, "boss")
    assert nobody.code is ExitCode.CANNOT_CONNECT
    assert str(nobody).endswith("A valid key is required: set CLAWSTREAM_API_KEY")
    assert user.code is ExitCode.CANNOT_CONNECT
    assert boss.code is ExitCode.MISSING
    assert str(boss).endswith("/v1/admin/say: there is no such session")


@pytest.mark.parametrize(
    "answer",
    [
        b"SSH-2.0-something\r\n",
        b"HTTP/1.1 404 Not Found\r\nContent-Length: 5\r\n\r\nsorry",
        b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nhi",
        b"HTTP/1.1 200 OK\r\nContent-Length: 9\r\n\r\nhi",
        b"",
    ],
)
def test_what_is_no_gateway_is_told_so(answer: bytes) -> None:
    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(answer)
        writer.close()

    @on_uvloop
    async def run() -> None:
        server = await asyncio.start_server(serve, "127.0.0.1", 0)
        async with server:
            url = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"
            assert (await refused(url, SAY, None)).code is ExitCode.CANNOT_CONNECT

    run()


@on_uvloop
async def test_text_comes_as_it_is() -> None:
    async with running_gateway() as gateway:
        text = await asyncio.to_thread(get_text, gateway.url, "/metrics", None)
    assert "clawstream_connections" in text
