"""A server with OpenAI's API that does what a test wants, faults included.

By default it answers a prompt with the prompt's own words. A ``Script`` makes one request go
differently; scripts are used up in order.
"""

from __future__ import annotations

import asyncio
import json
from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass, field
from types import TracebackType
from typing import Any

from aiohttp import web

from tests.fakes.echo_llm import TOKEN


@dataclass(kw_only=True)
class Script:
    """How one request is answered. Numbers count pieces of text.

    ``status`` other than 200 is told with ``body``. ``raw`` replaces the whole stream. ``cut`` is
    how many bytes go into each TCP segment. ``breaks_after`` resets the connection,
    ``ends_after`` closes the stream as if it were complete, ``stalls_after`` says nothing more.
    """

    status: int = 200
    headers: Mapping[str, str] = field(default_factory=dict)
    body: Any = None
    raw: bytes | None = None
    content_type: str = "text/event-stream"
    pieces: list[str] | None = None
    gap_s: float = 0.0
    is_burst: bool = False
    cut: int | None = None
    breaks_after: int | None = None
    ends_after: int | None = None
    stalls_after: int | None = None
    comment_gap_s: float | None = None  # while it stalls
    has_role: bool = True
    has_usage: bool = True
    has_done: bool = True
    stays_open: bool = False
    finish_reason: str = "stop"


@dataclass(frozen=True)
class Asked:
    """A request as it came."""

    path: str
    headers: Mapping[str, str]
    body: dict[str, Any]


class FakeOpenAiServer:
    """Async context manager on a free port of the loopback interface.

    ``num_open`` requests are being answered; ``num_disconnects`` were given up by their client.
    ``connections`` are the clients' ports seen so far. ``num_sent`` counts pieces.
    """

    def __init__(self, port: int = 0) -> None:
        self.scripts: deque[Script] = deque()
        self.asked: list[Asked] = []
        self.connections: set[int] = set()
        self.models_status = 200
        self.num_open = self.max_open = self.num_disconnects = self.num_sent = 0
        self.port = port
        self._is_free = asyncio.Event()
        self._is_free.set()
        self._runner: web.AppRunner | None = None

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}/v1"

    def block(self) -> None:
        """No request gets anything until ``unblock``."""
        self._is_free.clear()

    def unblock(self) -> None:
        self._is_free.set()

    async def __aenter__(self) -> FakeOpenAiServer:
        app = web.Application()
        app.router.add_get("/v1/models", self._list_models)
        app.router.add_post("/v1/completions", self._answer)
        app.router.add_post("/v1/chat/completions", self._answer)
        self._runner = web.AppRunner(app, handler_cancellation=True, shutdown_timeout=0.1)
        await self._runner.setup()
        await web.TCPSite(self._runner, "127.0.0.1", self.port, reuse_address=True).start()
        self.port = self._runner.addresses[0][1]
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        assert self._runner is not None
        self.unblock()
        await self._runner.cleanup()

    async def _list_models(self, request: web.Request) -> web.Response:
        return web.json_response({"data": []}, status=self.models_status)

    async def _answer(self, request: web.Request) -> web.StreamResponse:
        body = await request.json()
        self.asked.append(Asked(request.path, request.headers, body))
        assert request.transport is not None
        self.connections.add(request.transport.get_extra_info("peername")[1])
        script = self.scripts.popleft() if self.scripts else Script()
        self.num_open += 1
        self.max_open = max(self.max_open, self.num_open)
        try:
            await self._is_free.wait()
            return await self._play(request, body, script)
        except (asyncio.CancelledError, ConnectionError):
            self.num_disconnects += 1
            raise
        finally:
            self.num_open -= 1

    async def _play(
        self, request: web.Request, body: dict[str, Any], script: Script
    ) -> web.StreamResponse:
        if script.status != 200:
            return web.json_response(script.body, status=script.status, headers=script.headers)
        response = web.StreamResponse(headers={"Content-Type": script.content_type})
        await response.prepare(request)
        if script.raw is not None:
            await response.write(script.raw)
        else:
            await self._stream(request, response, body, script)
        if script.stays_open:
            await asyncio.Event().wait()
        await response.write_eof()
        return response

    async def _stream(
        self,
        request: web.Request,
        response: web.StreamResponse,
        body: dict[str, Any],
        script: Script,
    ) -> None:
        is_chat = "messages" in body
        words = TOKEN.findall(body["messages"][-1]["content"] if is_chat else body["prompt"])
        pieces = words if script.pieces is None else script.pieces
        events = [chunk(is_chat, piece) for piece in pieces]
        if script.has_role and is_chat:
            await response.write(event({"choices": [{"delta": {"role": "assistant"}}]}))
        if script.is_burst:
            events = [b"".join(events)]
        for index, data in enumerate(events):
            if index == script.breaks_after:
                assert request.transport is not None
                request.transport.abort()
            if index == script.ends_after:
                return
            if index == script.stalls_after:
                await self._stall(response, script)
            await self._write(response, data, script.cut)
            self.num_sent += 1
            if script.gap_s:
                await asyncio.sleep(script.gap_s)
        tail = event({"choices": [{"delta": {}, "finish_reason": script.finish_reason}]})
        if script.has_usage:
            count = {"prompt_tokens": len(words), "completion_tokens": len(pieces)}
            tail += event({"choices": [], "usage": count})
        await response.write(tail + (b"data: [DONE]\n\n" if script.has_done else b""))

    async def _stall(self, response: web.StreamResponse, script: Script) -> None:
        while True:
            await asyncio.sleep(script.comment_gap_s or 60.0)
            await response.write(b": still here\n\n")

    async def _write(self, response: web.StreamResponse, data: bytes, cut: int | None) -> None:
        size = cut or len(data)
        for start in range(0, len(data), size):
            await response.write(data[start : start + size])
            if cut is not None:
                await asyncio.sleep(0)  # a segment of its own


def chunk(is_chat: bool, text: str) -> bytes:
    """One piece of text as the API sends it."""
    choice = {"delta": {"content": text}} if is_chat else {"text": text}
    return event({"choices": [{"index": 0, "finish_reason": None, **choice}]})


def event(data: dict[str, Any]) -> bytes:
    return b"data: " + json.dumps(data, ensure_ascii=False).encode() + b"\n\n"
