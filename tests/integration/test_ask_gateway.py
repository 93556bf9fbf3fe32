"""What commands say of a gateway that refuses, and of what is no gateway."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest
from typer.testing import CliRunner

from gateway.cli import app
from gateway.commands.ask_gateway import get_text, post_json
from gateway.commands.exits import CommandError, ExitCode
from tests.fakes.gateway import running_gateway
from tests.fakes.uvloop_runner import on_uvloop

pytestmark = pytest.mark.integration

SAY = "/v1/admin/say"


async def refused(url: str, path: str, api_key: str | None) -> CommandError:
    body = {"text": "x", "session": "none"}
    with pytest.raises(CommandError) as caught:
        await asyncio.to_thread(post_json, url, path, api_key, body, dict[str, Any])
    return caught.value


@asynccontextmanager
async def answering(answer: bytes) -> AsyncIterator[str]:
    """The address of what gives every request the same answer."""

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(answer)
        writer.close()

    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    async with server:
        yield f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"


def json_answer(body: bytes, status: str = "200 OK") -> bytes:
    return f"HTTP/1.1 {status}\r\nContent-Length: {len(body)}\r\n\r\n".encode() + body


async def run_command(answer: bytes, *arguments: str) -> tuple[int, str]:
    """Exit code and output of a command whose gateway gives that answer."""
    async with answering(answer) as url:
        command = [*arguments, "--url", url]
        result = await asyncio.to_thread(CliRunner().invoke, app, command, env={"NO_COLOR": "1"})
    assert result.exception is None or isinstance(result.exception, SystemExit)
    return result.exit_code, result.output


@on_uvloop
async def test_a_refusal_is_told_in_the_gateways_own_words() -> None:
    keys = {"api_keys": ["user"], "admin_keys": ["boss"]}
    async with running_gateway(server=keys) as gateway:
        nobody = await refused(gateway.url, SAY, None)
        wrong = await refused(gateway.url, SAY, "wrong")
        user = await refused(gateway.url, SAY, "user")
        boss = await refused(gateway.url, SAY, "boss")
    assert nobody.code is ExitCode.CANNOT_CONNECT
    assert str(nobody).endswith(": A valid key is required; set CLAWSTREAM_API_KEY")
    assert wrong.code is ExitCode.CANNOT_CONNECT
    assert str(wrong).endswith(": the key is not valid; set CLAWSTREAM_API_KEY")
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
        b"HTTP/1.1 404 Not Found\r\nTransfer-Encoding: chunked\r\n\r\n9\r\nhi",
        json_answer(b"[" * 100_000, "404 Not Found"),
        json_answer(b'{"title": 404}', "404 Not Found"),
        b"",
    ],
)
@on_uvloop
async def test_what_is_no_gateway_is_told_so(answer: bytes) -> None:
    async with answering(answer) as url:
        assert (await refused(url, SAY, None)).code is ExitCode.CANNOT_CONNECT


@pytest.mark.parametrize(
    "command",
    [("say", "x"), ("models", "reload", "m"), ("models", "versions", "m")],
    ids=["say", "reload", "versions"],
)
@pytest.mark.parametrize(
    "body",
    [
        b"{}",
        b"null",
        b"[1]",
        b'{"sessions": "many", "name": 1, "version": 2}',
        b'[{"name": "m", "version": 2}]',
        b'{"sessions": 1, "name": "m", "version": "1", "more": ' + b"[" * 100_000,
        b'[{"more": ' + b"[" * 100_000,
    ],
    ids=range(7),
)
@on_uvloop
async def test_json_that_no_gateway_sends_ends_in_one_line(
    command: tuple[str, ...], body: bytes
) -> None:
    code, output = await run_command(json_answer(body), *command)
    assert code == ExitCode.CANNOT_CONNECT
    assert output.startswith("error: http://127.0.0.1:")
    assert output.endswith(": whatever answers is no clawstream\n")
    assert output.count("\n") == 1


@on_uvloop
async def test_a_refusal_is_one_line_whatever_it_says() -> None:
    problem = b'{"title": "No", "detail": "not\\n  [bold]now[/red]"}'
    code, output = await run_command(json_answer(problem, "503 Busy"), "models", "reload", "m")
    assert code == ExitCode.FAILED
    assert output.endswith("/v2/repository/models/m/load: not [bold]now[/red]\n")
    assert output.count("\n") == 1


@on_uvloop
async def test_names_are_shown_as_they_are() -> None:
    loaded = b'{"name": "[/m]", "version": "[2]", "new": [1]}'
    assert await run_command(json_answer(loaded), "models", "reload", "m") == (
        0,
        "[/m]: version [2] serves\n",
    )
    entry = b'{"name": "m", "version": "[/2]", "state": "READY", "role": "[a]", "reason": ""}'
    code, output = await run_command(json_answer(b"[" + entry + b"]"), "models", "versions", "m")
    assert code == ExitCode.OK
    assert output.split()[-3:] == ["[/2]", "[a]", "ready"]


@on_uvloop
async def test_text_comes_as_it_is() -> None:
    async with running_gateway() as gateway:
        text = await asyncio.to_thread(get_text, gateway.url, "/metrics", None)
    assert "clawstream_connections" in text


def test_where_nothing_listens_the_way_out_is_told() -> None:
    with socket.socket() as bound:  # so nobody else listens there
        bound.bind(("127.0.0.1", 0))
        url = f"ws://127.0.0.1:{bound.getsockname()[1]}"
        with pytest.raises(CommandError, match="nothing listens there; start one") as refusal:
            get_text(url, "/metrics", None)
    assert refusal.value.code is ExitCode.CANNOT_CONNECT
