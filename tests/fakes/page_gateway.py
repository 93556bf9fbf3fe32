"""The real page in front of a gateway that is all fake: it answers what the test tells it to.

It speaks ``clawstream.v1`` through the project's own codec and finds bright squares instead of
running a model, so that a test can compare the picture on the page with the box drawn over it.
Prompts are answered word by word (``page_tokens``).
"""

from __future__ import annotations

import asyncio
import json
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import cv2
import numpy as np
from aiohttp import WSCloseCode, WSMsgType, web

from engine.errors import UnknownModel
from gateway.api.pages import PagesApi, add_security_headers
from gateway.wire import codec
from gateway.wire.codec import FrameHeader, MessageType
from gateway.wire.messages import PIECE_BYTES, SUBPROTOCOL
from tests.fakes.page_tokens import FakeTokenStream, Speech

CHAT_MODEL = "parrot"
CREDIT = 8
_LIMITS = {
    "max_message_bytes": codec.MAX_BINARY_BYTES,
    "max_frame_bytes": PIECE_BYTES,
    "max_streams": 4,
    "max_width": 4096,
    "max_height": 4096,
    "max_pixels": 16_777_216,
    "max_prompts": 3,
    "ack_deadline_s": 10.0,
    "max_messages_per_s": 4000.0,
}
_TIMING = {"received_us": 0, "queue": 2000, "batch": 500, "prepare": 3000, "run": 12000}


@dataclass
class Behaviour:
    """What the gateway does; tests change it while it runs."""

    key: str | None = None
    is_ready: bool = True
    kinds: tuple[str, ...] = ("detect",)  # of the models that are served
    accepts: bool = True  # False: connections are refused
    delay_s: float = 0.02
    answer_every: int = 1  # other frames are dropped as superseded
    annotate: bytes | None = None  # JPEG attached to every result
    error: str | None = None  # title of the problem that answers every frame
    hint: dict[str, float] | None = None  # told to every stream that opens
    speech: Speech = field(default_factory=Speech)


class FakePageGateway:
    """``async with FakePageGateway() as gateway``; then ``gateway.url``."""

    def __init__(self, clip: Path | None = None) -> None:
        self.behaviour = Behaviour()
        self.opened: list[dict[str, Any]] = []  # options of every stream, as received
        self.frames = 0
        self.prompts: list[dict[str, Any]] = []
        self.acks: list[dict[str, Any]] = []
        self.url = ""
        self._clip = clip
        self._sockets: set[web.WebSocketResponse] = set()
        self._runner: web.AppRunner | None = None

    async def __aenter__(self) -> FakePageGateway:
        app = web.Application()
        app.on_response_prepare.append(add_security_headers)
        app.add_routes(PagesApi(self._clip_path).routes())
        app.add_routes(
            [
                web.get("/v1/models", self._models),
                web.get("/readyz", self._readyz),
                web.get("/v1/stream", self._stream),
            ]
        )
        self._runner = web.AppRunner(app, access_log=None)
        await self._runner.setup()
        site = web.TCPSite(self._runner, "127.0.0.1", 0)
        await site.start()
        self.url = f"http://127.0.0.1:{self._runner.addresses[0][1]}/"
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close_sockets(WSCloseCode.GOING_AWAY)
        assert self._runner is not None
        await self._runner.cleanup()

    async def close_sockets(self, code: int) -> None:
        """End every connection with this close code."""
        for socket in tuple(self._sockets):
            await socket.close(code=code)

    def _clip_path(self, name: str) -> Path:
        if self._clip is None:
            raise UnknownModel(f"no clip {name}")
        return self._clip

    def _is_allowed(self, request: web.Request) -> bool:
        presented = request.headers.get("Authorization", "").removeprefix("Bearer ")
        return self.behaviour.key in (None, presented)

    async def _models(self, request: web.Request) -> web.Response:
        if not self._is_allowed(request):
            return web.json_response({"title": "A valid key is required"}, status=401)
        names = {"detect": "squares", "chat": CHAT_MODEL}
        ready = {"ready": self.behaviour.is_ready, "reason": ""}
        cards = [{"id": names[kind], "kind": kind, **ready} for kind in self.behaviour.kinds]
        return web.json_response({"object": "list", "data": cards})

    async def _readyz(self, request: web.Request) -> web.Response:
        if self.behaviour.is_ready:
            return web.json_response({"status": "ready"})
        return web.json_response({"detail": "model squares: warming up"}, status=503)

    async def _stream(self, request: web.Request) -> web.StreamResponse:
        if not self.behaviour.accepts:
            return web.Response(status=503)
        socket = web.WebSocketResponse(protocols=(SUBPROTOCOL,), compress=False)
        await socket.prepare(request)
        self._sockets.add(socket)
        try:
            await _Connection(self, socket).run()
        finally:
            self._sockets.discard(socket)
        return socket


class _Connection:
    """One socket; answers leave in order, each ``delay_s`` after its frame came."""

    def __init__(self, gateway: FakePageGateway, socket: web.WebSocketResponse) -> None:
        self._gateway = gateway
        self._socket = socket
        self._received = 0
        self._pending: set[asyncio.Task[None]] = set()  # at most CREDIT: the page keeps to it
        self._token_streams: dict[int, FakeTokenStream] = {}  # the page opens one per model

    async def run(self) -> None:
        async for message in self._socket:
            if message.type is WSMsgType.TEXT:
                await self._on_control(json.loads(message.data))
            elif message.type is WSMsgType.BINARY:
                self._on_frame(message.data)
        for task in self._pending:
            task.cancel()
        for stream in self._token_streams.values():
            stream.close()

    async def _on_control(self, message: dict[str, Any]) -> None:
        match message["type"]:
            case "hello":
                await self._on_hello(message.get("token"))
            case "open":
                await self._on_open(message)
            case "prompt":
                self._gateway.prompts.append(message)
                self._token_streams[message["stream"]].prompt(message)
            case "cancel":
                await self._token_streams[message["stream"]].cancel(message["id"])
            case "end" if message["stream"] in self._token_streams:
                await self._token_streams[message["stream"]].end()
            case "close" if message["stream"] in self._token_streams:
                await self._token_streams[message["stream"]].stop()
            case "ack":
                self._gateway.acks.append(message)
            case "ping":
                await self._send(type="pong", t=message["t"], now_us=1)

    async def _on_hello(self, token: str | None) -> None:
        if self._gateway.behaviour.key not in (None, token):
            problem = {"type": "urn:clawstream:problem:unauthorized", "title": "Key", "status": 401}
            await self._send(type="error", problem=problem, retryable=False)
            await self._socket.close(code=4501)
            return
        await self._send(
            type="welcome",
            session="s",
            epoch="e",
            resume_token="r",
            resume_window_s=0,
            limits=_LIMITS,
            models=["squares"],
            now_us=1,
        )

    async def _on_open(self, message: dict[str, Any]) -> None:
        stream = message["stream"]
        if not self._gateway.behaviour.is_ready:
            problem = {"type": "urn:clawstream:problem:unavailable", "title": "No", "status": 503}
            await self._send(type="error", stream=stream, problem=problem, retryable=True)
            return
        self._gateway.opened.append(message)
        self._received = 0
        if message["kind"] == "tokens":
            speech = self._gateway.behaviour.speech
            self._token_streams[stream] = FakeTokenStream(stream, speech, self._send)
        await self._send(type="opened", stream=stream, credit=self._grant())
        if (hint := self._gateway.behaviour.hint) is not None:
            await self._send(type="hint", stream=stream, **hint)

    def _on_frame(self, data: bytes) -> None:
        message = codec.decode_binary(data)
        self._gateway.frames += 1
        self._received += 1
        task = asyncio.create_task(self._answer(message.header, bytes(message.payload)))
        self._pending.add(task)
        task.add_done_callback(self._pending.discard)

    async def _answer(self, header: FrameHeader, jpeg: bytes) -> None:
        behaviour = self._gateway.behaviour
        await asyncio.sleep(behaviour.delay_s)
        if self._socket.closed:
            return
        if behaviour.error is not None:
            problem = {"type": "urn:clawstream:problem:x", "title": behaviour.error, "status": 422}
            subject = {"stream": header.stream, "seq": header.seq}
            await self._send(type="error", problem=problem, retryable=False, **subject)
        elif header.seq % behaviour.answer_every != 0:
            await self._drop(header)
        else:
            await self._result(header, jpeg)
        await self._send(type="credit", stream=header.stream, **self._grant())

    async def _drop(self, header: FrameHeader) -> None:
        frames = {"from": header.seq, "to": header.seq, "count": 1}
        await self._send(type="drop", stream=header.stream, reason="superseded", **frames)

    async def _result(self, header: FrameHeader, jpeg: bytes) -> None:
        attachments: dict[str, Any] = {}
        if (annotated := self._gateway.behaviour.annotate) is not None:
            attached = FrameHeader(
                type=MessageType.ANNOTATED_FRAME,
                stream=header.stream,
                seq=header.seq,
                t_us=header.t_us,
            )
            await self._socket.send_bytes(codec.encode_binary(attached, annotated))
            attachments = {"attachments": [{"kind": 3, "bytes": len(annotated)}]}
        await self._send(
            type="result",
            stream=header.stream,
            seq=header.seq,
            t_us=header.t_us,
            model="squares",
            version="1",
            data=find_square(jpeg),
            timing=_TIMING,
            **attachments,
        )

    def _grant(self) -> dict[str, int]:
        return {"max_frames": self._received + CREDIT, "max_bytes": 2**40}

    async def _send(self, **message: Any) -> None:
        await self._socket.send_str(json.dumps(message))


def find_square(jpeg: bytes) -> dict[str, Any]:
    """Result data with one object: the box around everything that is nearly white."""
    grey = cv2.imdecode(np.frombuffer(jpeg, np.uint8), cv2.IMREAD_GRAYSCALE)
    assert grey is not None, "the page sent no picture"
    height, width = grey.shape
    rows, columns = np.nonzero(grey > 200)
    objects = []
    if len(rows) > 0:
        box = [int(columns.min()), int(rows.min()), int(columns.max()) + 1, int(rows.max()) + 1]
        objects.append({"label": "square", "score": 0.9, "box": box, "landmarks": [box[:2]]})
    return {"width": width, "height": height, "objects": objects}
