"""Hints over real sockets: what a server asks of a camera, and that the client obeys."""

from __future__ import annotations

import time

import pytest

from gateway.client import connect, frames_from_bytes
from gateway.wire.codec import BinaryMessage
from gateway.wire.messages import Hint
from tests.fakes.stream_server import Peer, StreamServer, picture, stream_server

pytestmark = pytest.mark.integration


async def test_a_client_sends_fewer_frames_when_it_is_asked_to() -> None:
    server = StreamServer()
    arrivals: list[float] = []

    async def answer(peer: Peer, frame: BinaryMessage) -> None:
        arrivals.append(time.monotonic())
        if len(arrivals) == 10:
            await peer.send(Hint(stream=frame.header.stream, max_fps=10.0))
        if len(arrivals) == 16:
            await peer.send(Hint(stream=frame.header.stream))
        await peer.result(frame)

    server.answer = answer
    source = frames_from_bytes([picture()] * 60, fps=50.0)
    async with stream_server(server), connect(server.url) as client:
        results = [r async for r in client.stream_frames(source, model="centerface")]
    assert arrivals[15] - arrivals[11] > 0.3, "four gaps of 0.1 s, but for what a machine adds"
    # Of 60 in 1.2 s: 16 until the second hint, half a second of which is skipped, then all; at
    # 10 fps to the end it would be 20.
    assert 25 < len(results) == len(arrivals) < 45
