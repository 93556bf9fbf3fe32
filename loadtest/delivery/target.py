"""What a delivery bench talks to: the gateway with a steady engine, or with a worker process that
stamps its texts, or a bare aiohttp echo.

    python -m loadtest.delivery.target gateway|stamps|echo OPTIONS

OPTIONS is JSON. One line with the port is printed once the server is ready; it ends with its
standard input.
"""

from __future__ import annotations

import asyncio
import cProfile
import json
import subprocess
import sys
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self

import psutil
import uvloop
from aiohttp import WSMsgType, web

if TYPE_CHECKING:
    from engine.base import Engine

STAMPS = "stamps"  # the name of the model whose texts are stamped
START_S = 20.0
STOP_S = 10.0


@dataclass(slots=True)
class Target:
    """The server in a process of its own; a context manager. ``tables`` configure a gateway."""

    kind: str
    rate_hz: float = 20.0
    result_bytes: int = 50_000
    tables: dict[str, Any] = field(default_factory=dict)
    profile_path: Path | None = None  # where to leave a cProfile of the server
    port: int = 0
    _process: subprocess.Popen[str] | None = None

    def __enter__(self) -> Self:
        options = {
            "rate_hz": self.rate_hz,
            "result_bytes": self.result_bytes,
            "tables": self.tables,
            "profile": None if self.profile_path is None else str(self.profile_path),
        }
        self._process = subprocess.Popen(
            [sys.executable, "-m", "loadtest.delivery.target", self.kind, json.dumps(options)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        if not line:
            raise RuntimeError(f"the {self.kind} server did not start")
        self.port = int(line)
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        assert self._process is not None
        assert self._process.stdin is not None
        self._process.stdin.close()
        try:
            self._process.wait(STOP_S)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait(STOP_S)
        finally:
            assert self._process.stdout is not None
            self._process.stdout.close()

    @property
    def pid(self) -> int:
        assert self._process is not None
        return self._process.pid

    def cpu_s(self) -> float:
        """Processor time so far, in user and kernel space."""
        times = psutil.Process(self.pid).cpu_times()
        return float(times.user + times.system)


async def serve_gateway(options: dict[str, Any]) -> None:
    """The product, with its own configuration and a steady engine."""
    from loadtest.delivery.steady_engine import SteadyEngine

    engine = SteadyEngine(rate_hz=options["rate_hz"], result_bytes=options["result_bytes"])
    await _serve_engine(engine, options)


async def serve_stamps(options: dict[str, Any]) -> None:
    """The product and its engine for prompts, with a worker that stamps its texts."""
    from engine.config import LlmConfig
    from engine.llm.client import LlmEngine
    from engine.llm.host import LlmHost
    from engine.manifest import Manifest

    factory = partial(LlmHost, module="loadtest.delivery.stamping_worker")
    await _serve_engine(LlmEngine({STAMPS: (Manifest(name=STAMPS), LlmConfig())}, factory), options)


async def _serve_engine(engine: Engine, options: dict[str, Any]) -> None:
    from gateway.app import Gateway
    from gateway.config import parse_config

    tables = {"server": {"port": 0, "shutdown_budget_s": 2.0}, **options["tables"]}
    gateway = Gateway(parse_config(tables), engine)
    await gateway.start()
    await _serve_until_eof(gateway.port)
    await gateway.aclose()


async def serve_echo(options: dict[str, Any]) -> None:
    """aiohttp as its documentation shows it, without compression."""
    runner = web.AppRunner(_echo_app(), access_log=None)
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", 0, backlog=1024)
    await site.start()
    await _serve_until_eof(runner.addresses[0][1])
    await runner.cleanup()


def _echo_app() -> web.Application:
    async def echo(request: web.Request) -> web.WebSocketResponse:
        socket = web.WebSocketResponse(compress=False)
        await socket.prepare(request)
        with suppress(ConnectionError):  # clients of a flood leave in the middle of it
            async for message in socket:
                if message.type is WSMsgType.TEXT:
                    await socket.send_str(message.data)
                elif message.type is WSMsgType.BINARY:
                    await socket.send_bytes(message.data)
        return socket

    app = web.Application()
    app.add_routes([web.get("/v1/stream", echo)])
    return app


async def _serve_until_eof(port: int) -> None:
    print(port, flush=True)
    await asyncio.to_thread(sys.stdin.read)


def main() -> None:
    options = json.loads(sys.argv[2])
    serve = {"gateway": serve_gateway, "stamps": serve_stamps, "echo": serve_echo}[sys.argv[1]]
    profile = cProfile.Profile() if options["profile"] else None
    if profile is not None:
        profile.enable()
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(serve(options))
    if profile is not None:
        profile.dump_stats(options["profile"])


if __name__ == "__main__":
    main()
