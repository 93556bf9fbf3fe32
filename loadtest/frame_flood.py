"""Cameras that cost their machine next to nothing: pre-encoded frames, as many as credit allows.

A process of its own, so that it can have its own core:

    python -m loadtest.frame_flood URL \\
        '{"streams": 8, "payload_bytes": 64, "seconds": 5, "core": 1}'
"""

from __future__ import annotations

import asyncio
import json
import os
import re
import subprocess
import sys
from dataclasses import asdict, dataclass
from typing import Any

import aiohttp
import msgspec
import uvloop

from gateway.wire.codec import FrameHeader, MessageType, encode_binary

WARM_UP_S = 1.0
ACK_EVERY = 16
ECHOES = 200  # at least one a connection
SEQ = slice(8, 16)  # of the binary header
_CREDIT = re.compile(rb'"max_frames":(\d+)')


@dataclass(frozen=True, slots=True, kw_only=True)
class Flood:
    """``streams`` connections with one lossless stream of tensors each; without a ``model`` they
    talk to an echo, ``ECHOES`` messages at once over all."""

    streams: int
    payload_bytes: int
    seconds: float
    core: int
    model: str = "null"


@dataclass(frozen=True, slots=True, kw_only=True)
class Answered:
    """What came back while it was measured."""

    results_per_s: float
    slowest_per_s: float  # of the streams
    fastest_per_s: float
    cpu_share: float  # of the generator's core
    problems: int  # messages that were neither result nor credit


def flood(url: str, options: Flood) -> Answered:
    """Run it in its own process."""
    command = [sys.executable, "-m", "loadtest.frame_flood", url, json.dumps(asdict(options))]
    limit_s = options.seconds + 60.0
    done = subprocess.run(command, stdout=subprocess.PIPE, timeout=limit_s, check=True)
    return Answered(**json.loads(done.stdout))


class Camera:
    """One connection, one stream; ``num_results`` grows for ever."""

    def __init__(self, options: Flood) -> None:
        self.num_results = 0
        self.num_problems = 0
        self._options = options
        self._message = bytearray(tensor_message(options.payload_bytes))
        self._num_sent = 0
        self._num_allowed = 0

    async def run(self, http: aiohttp.ClientSession, url: str) -> None:
        """Until cancelled."""
        socket = http.ws_connect(f"{url}/v1/stream", protocols=("clawstream.v1",), max_msg_size=0)
        async with socket as self._socket:
            await self._tell(type="hello")
            await self._tell(
                type="open",
                stream=1,
                model=self._options.model,
                kind="tensors",
                options={"policy": "lossless"},
            )
            async for message in self._socket:
                await self._receive(message.data.encode())

    async def _receive(self, data: bytes) -> None:
        # A search in bytes: to parse each answer costs more than to make the frame.
        if data.startswith(b'{"type":"result"'):
            self.num_results += 1
            if self.num_results % ACK_EVERY == 0:
                await self._tell(type="ack", stream=1, seq=self.num_results - 1)
        elif credit := _CREDIT.search(data):
            self._num_allowed = int(credit[1])
        elif data.startswith(b'{"type":"ping"'):
            await self._tell(type="pong", t=msgspec.json.decode(data)["t"])
        elif not data.startswith((b'{"type":"welcome"', b'{"type":"server_event"')):
            self.num_problems += 1
        while self._num_sent < self._num_allowed:
            self._message[SEQ] = self._num_sent.to_bytes(8, "little")
            self._num_sent += 1
            await self._socket.send_bytes(bytes(self._message))

    async def _tell(self, **members: Any) -> None:
        await self._socket.send_str(msgspec.json.encode(members).decode())


class EchoCamera(Camera):
    """Sends a message for each that comes back."""

    async def run(self, http: aiohttp.ClientSession, url: str) -> None:
        data = bytes(self._message)
        async with http.ws_connect(f"{url}/v1/stream", max_msg_size=0) as socket:
            for _ in range(max(1, ECHOES // self._options.streams)):
                await socket.send_bytes(data)
            async for _ in socket:
                self.num_results += 1
                await socket.send_bytes(data)


def tensor_message(payload_bytes: int) -> bytes:
    """A message with one tensor of so many bytes."""
    tensor = {"name": "", "dtype": "uint8", "shape": [payload_bytes]}
    header = FrameHeader(type=MessageType.TENSORS, stream=1, seq=0, t_us=0)
    return encode_binary(header, bytes(payload_bytes), json.dumps({"tensors": [tensor]}).encode())


async def answer(url: str, options: Flood) -> Answered:
    loop = asyncio.get_running_loop()
    kind = Camera if options.model else EchoCamera
    cameras = [kind(options) for _ in range(options.streams)]
    connector = aiohttp.TCPConnector(limit=0)
    async with aiohttp.ClientSession(connector=connector) as http, asyncio.TaskGroup() as tasks:
        running = [
            tasks.create_task(camera.run(http, url), name=f"camera {number}")
            for number, camera in enumerate(cameras)
        ]
        await asyncio.sleep(WARM_UP_S)
        before, began, cpu = [each.num_results for each in cameras], loop.time(), os.times()
        await asyncio.sleep(options.seconds)
        elapsed_s, spent = loop.time() - began, os.times()
        counts = [each.num_results - b for each, b in zip(cameras, before, strict=True)]
        for task in running:
            task.cancel()
    return Answered(
        results_per_s=sum(counts) / elapsed_s,
        slowest_per_s=min(counts) / elapsed_s,
        fastest_per_s=max(counts) / elapsed_s,
        cpu_share=(spent.user + spent.system - cpu.user - cpu.system) / elapsed_s,
        problems=sum(each.num_problems for each in cameras),
    )


def main() -> None:
    options = Flood(**json.loads(sys.argv[2]))
    os.sched_setaffinity(0, {options.core})
    print(json.dumps(asdict(uvloop.run(answer(sys.argv[1], options)))))


if __name__ == "__main__":
    main()
