"""Start and end: readiness in phases, SIGTERM in order and in one budget."""

from __future__ import annotations

import asyncio
import json
import logging
import signal
import sys
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import aiohttp
import pytest

from engine.base import EngineStatistics, ModelStatistics
from engine.errors import StartupError
from engine.models.errors import MissingModel
from engine.models.store import ModelStore
from gateway.app import Gateway
from gateway.config import parse_config
from gateway.errors import ConfigError
from gateway.wire.codec import FrameHeader, MessageType, encode_binary
from tests.fakes.engine import FakeEngine
from tests.fakes.gateway import running_gateway, wait_until
from tests.fakes.picture_headers import jpeg_header
from tests.fakes.raw_websocket import RawWebSocket
from tests.fakes.uvloop_runner import on_uvloop

pytestmark = pytest.mark.integration

BUDGET_S = 2.0


class SlowStartEngine(FakeEngine):
    """Warm once ``warm`` is set; fails to start with ``error``."""

    def __init__(self, error: Exception | None = None) -> None:
        super().__init__(("faces",))
        self.warm = asyncio.Event()
        self.is_closed = False
        self._error = error

    async def start(self) -> None:
        await self.warm.wait()
        if self._error is not None:
            raise self._error

    def statistics(self) -> EngineStatistics:
        (model,) = super().statistics().models
        fields = {name: getattr(model, name) for name in ModelStatistics.__dataclass_fields__}
        return EngineStatistics(
            models=(ModelStatistics(**{**fields, "ready": self.warm.is_set()}),)
        )

    async def aclose(self, deadline: float) -> None:
        self.is_closed = True
        await super().aclose(deadline)


async def get(gateway: Gateway, path: str) -> tuple[int, dict[str, str]]:
    async with (
        aiohttp.ClientSession() as client,
        client.get(f"{gateway.url}{path}") as response,
    ):
        return response.status, await response.json(content_type=None)


@on_uvloop
async def test_it_is_alive_before_it_is_ready() -> None:
    engine = SlowStartEngine()
    gateway = Gateway(parse_config({"server": {"port": 0}}), engine)
    await gateway.listen()
    assert await get(gateway, "healthz") == (200, {"status": "ok"})
    status, problem = await get(gateway, "readyz")
    assert (status, problem["detail"]) == (503, "model faces: warming up")
    engine.warm.set()
    await gateway.start()
    assert await get(gateway, "readyz") == (200, {"status": "ready"})
    await gateway.aclose()
    assert engine.is_closed


@on_uvloop
async def test_model_that_does_not_start_is_told_and_makes_the_process_unhealthy() -> None:
    engine = SlowStartEngine(StartupError("no such provider"))
    gateway = Gateway(parse_config({"server": {"port": 0}}), engine)
    engine.warm.set()
    with pytest.raises(StartupError, match="no such provider"):
        await gateway.start()
    assert (await get(gateway, "healthz"))[0] == 503
    assert (
        "the engine did not start: no such provider" in (await get(gateway, "readyz"))[1]["detail"]
    )
    await gateway.aclose()


@on_uvloop
async def test_model_that_does_not_start_is_told_once(caplog: pytest.LogCaptureFixture) -> None:
    engine = SlowStartEngine(StartupError("no such provider"))
    gateway = Gateway(parse_config({"server": {"port": 0}}), engine)
    engine.warm.set()
    with pytest.raises(StartupError, match="no such provider"):
        await gateway.run_until_signal()
    shown = [record for record in caplog.records if record.levelno >= logging.INFO]
    assert not [record for record in shown if "no such provider" in record.getMessage()]


@on_uvloop
async def test_fault_while_starting_is_raised_and_makes_the_process_unhealthy(
    caplog: pytest.LogCaptureFixture,
) -> None:
    engine = SlowStartEngine(RuntimeError("a bug"))
    gateway = Gateway(parse_config({"server": {"port": 0}}), engine)
    engine.warm.set()
    with pytest.raises(RuntimeError, match="a bug"):
        await gateway.start()
    status, problem = await get(gateway, "healthz")
    assert (status, problem["detail"]) == (503, "task engine start failed")
    assert "RuntimeError: a bug" in caplog.text
    await gateway.aclose()


@on_uvloop
async def test_closing_while_warming_up_stops_the_engine_and_leaves_no_task() -> None:
    engine = SlowStartEngine()
    gateway = Gateway(parse_config({"server": {"port": 0}}), engine)
    await gateway.listen()
    await gateway.aclose()
    await gateway.aclose()
    assert engine.is_closed
    await wait_until(lambda: len(asyncio.all_tasks()) == 1)


@on_uvloop
async def test_missing_model_is_told_before_anything_listens(tmp_path: Path) -> None:
    config = parse_config({"server": {"port": 0}})
    gateway = Gateway(config, store=ModelStore(tmp_path))
    with pytest.raises(MissingModel, match="clawstream models pull centerface"):
        await gateway.start()
    await gateway.aclose()


@on_uvloop
async def test_port_that_is_taken_and_host_that_is_unknown_are_told() -> None:
    async with running_gateway() as gateway:
        with pytest.raises(OSError, match="in use"):
            await Gateway(parse_config({"server": {"port": gateway.port}}), FakeEngine()).start()
    nowhere = {"server": {"host": "no.such.host.invalid", "api_keys": ["k"]}}
    with pytest.raises(ConfigError, match=r"^server\.host"):
        await Gateway(parse_config(nowhere), FakeEngine()).start()


# --- a process of its own


@asynccontextmanager
async def serving(delay_s: float) -> AsyncIterator[tuple[asyncio.subprocess.Process, str]]:
    tables = {"server": {"port": 0, "shutdown_budget_s": BUDGET_S}}
    process = await asyncio.create_subprocess_exec(
        sys.executable,
        *("-m", "tests.fakes.serve_fake", json.dumps(tables), str(delay_s)),
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
    )
    assert process.stdout is not None
    try:
        async with asyncio.timeout(20):
            yield process, (await process.stdout.readline()).decode().strip()
    finally:
        if process.returncode is None:
            process.kill()
        await process.communicate()


async def with_frames(
    client: aiohttp.ClientSession, url: str, count: int
) -> aiohttp.ClientWebSocketResponse:
    """A connection with ``count`` frames in flight."""
    socket = await client.ws_connect(f"{url}v1/stream")
    await socket.send_json({"type": "hello"})
    options = {"policy": "lossless"}
    await socket.send_json({"type": "open", "stream": 1, "model": "fake", "options": options})
    for _ in ("welcome", "opened"):
        await socket.receive(timeout=5)
    for seq in range(count):
        header = FrameHeader(type=MessageType.FRAME, stream=1, seq=seq, t_us=0)
        await socket.send_bytes(encode_binary(header, jpeg_header(64, 64)))
    return socket


async def rest_of(socket: aiohttp.ClientWebSocketResponse) -> tuple[list[Any], int | None]:
    """The messages up to the close, and its code."""
    messages = [json.loads(message.data) async for message in socket]
    return messages, socket.close_code


async def exit_of(process: asyncio.subprocess.Process) -> tuple[int, str]:
    _, errors = await process.communicate()
    assert process.returncode is not None
    return process.returncode, errors.decode()


@on_uvloop
async def test_sigterm_finishes_what_was_accepted_then_closes_1012_and_exits_0() -> None:
    async with serving(delay_s=0.15) as (process, url), aiohttp.ClientSession() as client:
        socket = await with_frames(client, url, count=3)
        idle = await client.ws_connect(f"{url}v1/stream")
        port = int(url.rstrip("/").rsplit(":", 1)[1])
        with RawWebSocket(port, receive_buffer_bytes=4096) as never_reads:
            await never_reads.handshake()
            await asyncio.sleep(0.05)
            process.send_signal(signal.SIGTERM)
            started_at = time.monotonic()
            await asyncio.sleep(0.05)
            async with client.get(f"{url}readyz") as response:
                assert response.status == 503
                assert "shutting down" in (await response.json(content_type=None))["detail"]
            with pytest.raises(aiohttp.WSServerHandshakeError, match="503"):
                await client.ws_connect(f"{url}v1/stream")
            messages, code = await rest_of(socket)
            types = [message["type"] for message in messages]
            assert code == 1012
            assert types.count("result") == 3
            assert "goaway" in types
            assert (await rest_of(idle))[1] == 1012
            code, errors = await exit_of(process)
    assert (code, "Traceback" in errors) == (0, False), errors
    assert time.monotonic() - started_at < BUDGET_S + 0.5


@on_uvloop
async def test_stuck_model_does_not_outlast_the_budget() -> None:
    async with serving(delay_s=60) as (process, url), aiohttp.ClientSession() as client:
        socket = await with_frames(client, url, count=2)
        process.send_signal(signal.SIGINT)
        started_at = time.monotonic()
        messages, code = await rest_of(socket)
        assert code == 1012
        (drop,) = (message for message in messages if message["type"] == "drop")
        assert (drop["reason"], drop["from"], drop["to"]) == ("shutdown", 0, 1)
        code, errors = await exit_of(process)
    assert (code, "Traceback" in errors) == (0, False), errors
    assert time.monotonic() - started_at < BUDGET_S + 0.5


@on_uvloop
async def test_every_accepted_frame_has_its_receipt_though_another_client_stalls() -> None:
    engine = FakeEngine()
    engine.block()
    async with running_gateway(engine) as gateway, aiohttp.ClientSession() as client:
        sockets = [await with_frames(client, gateway.url, count=5) for _ in range(4)]
        with RawWebSocket(gateway.port, receive_buffer_bytes=4096) as never_reads:
            await never_reads.handshake()
            await wait_until(lambda: engine.statistics().models[0].accepted == 20)
            closing = asyncio.create_task(gateway.aclose())
            for socket in sockets:
                messages, code = await rest_of(socket)
                assert code == 1012
                told = [m["count"] for m in messages if m["type"] == "drop"]
                assert (sum(told), messages[0]["type"]) == (5, "goaway")
            await closing
        gateway.sessions.check_integrity()
        assert gateway.sessions.statistics().models["fake"].dropped == {"shutdown": 20}


@on_uvloop
async def test_second_signal_cuts_it_short() -> None:
    async with serving(delay_s=60) as (process, url), aiohttp.ClientSession() as client:
        socket = await with_frames(client, url, count=2)
        process.send_signal(signal.SIGTERM)
        await asyncio.sleep(0.1)
        started_at = time.monotonic()
        process.send_signal(signal.SIGTERM)
        await rest_of(socket)
        code, _ = await exit_of(process)
    assert code == 0
    assert time.monotonic() - started_at < 10.0
