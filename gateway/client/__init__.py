"""Python client of the gateway: ``connect``, frames and prompts, and what comes back.

async with connect("ws://127.0.0.1:8400") as client:
    async for result in client.stream_frames(open_source(0), model="centerface"):
        print(result.seq, result.data["objects"])
    async for event in client.stream_chat("smollm2-135m", [{"role": "user", "content": "Hello"}]):
        print(event.text, end="")
"""

from __future__ import annotations

from gateway.client.chat import ChatStream, TextEvent, TextUsage
from gateway.client.connection import Client, connect
from gateway.client.errors import (
    AuthError,
    ClientError,
    ConnectError,
    Event,
    LostError,
    SourceError,
    StreamError,
)
from gateway.client.frames import CapturedFrame, FrameSource, frames_from_bytes
from gateway.client.link import LinkSettings
from gateway.client.results import FrameResult
from gateway.client.sources import open_source
from gateway.client.statistics import StreamStatistics
from gateway.client.streams import FrameStream
from gateway.wire.messages import TokenTiming

__all__ = [
    "AuthError",
    "CapturedFrame",
    "ChatStream",
    "Client",
    "ClientError",
    "ConnectError",
    "Event",
    "FrameResult",
    "FrameSource",
    "FrameStream",
    "LinkSettings",
    "LostError",
    "SourceError",
    "StreamError",
    "StreamStatistics",
    "TextEvent",
    "TextUsage",
    "TokenTiming",
    "connect",
    "frames_from_bytes",
    "open_source",
]
