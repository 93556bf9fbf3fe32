"""A camera and a gateway that is slower than it, for as long as hints take to settle."""

from __future__ import annotations

import asyncio

import pytest

from gateway.client import connect, frames_from_bytes
from tests.fakes.engine import FakeEngine
from tests.fakes.gateway import running_gateway, size_of
from tests.fakes.picture_headers import jpeg_header
from tests.fakes.uvloop_runner import on_uvloop

pytestmark = pytest.mark.slow

JPEG = jpeg_header(64, 48)


def test_a_gateway_slows_a_camera_down_to_what_its_model_serves_and_lets_it_go_again() -> None:
    @on_uvloop
    async def run() -> None:
        engine = FakeEngine(respond=size_of, delay_s=0.1)
        async with (
            running_gateway(engine) as gateway,
            connect(gateway.url) as client,
        ):
            source = frames_from_bytes([JPEG], fps=40.0, loop=True)
            stream = client.stream_frames(source, model="fake")

            async def sent_per_s(seconds: float) -> float:
                before = stream.statistics.sent
                await asyncio.sleep(seconds)
                return (stream.statistics.sent - before) / seconds

            async def read() -> int:
                return len([result async for result in stream])

            reader = asyncio.create_task(read(), name="reader")
            await asyncio.sleep(3.0)
            assert await sent_per_s(2.0) < 20
            engine.delay_s = 0.0
            await asyncio.sleep(12.0)
            assert await sent_per_s(2.0) > 30
            source.stop()
            assert await reader > 100
            assert stream.statistics.receipts_add_up

    run()
