"""Credit is the brake: many lossless streams never overflow the queue of their model."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from gateway.client import StreamStatistics, connect, frames_from_bytes
from tests.fakes.pictures import encode as encode_picture
from tests.fakes.pictures import gradient
from tests.fakes.served_pipeline import serve_scripted

pytestmark = pytest.mark.integration

PICTURE = encode_picture(gradient(64, 48))
STREAMS, FRAMES, PLACES = 24, 40, 64


async def test_many_lossless_streams_lose_nothing_in_a_queue_that_cannot_hold_their_windows(
    tmp_path: Path,
) -> None:
    serving = {"max_concurrent_requests": PLACES, "max_batch_size": 4}
    with serve_scripted(tmp_path, options={"run_s": 0.002}, serving=serving) as gateway:
        async with asyncio.timeout(60), connect(gateway.url) as client:

            async def send_all() -> StreamStatistics:
                source = frames_from_bytes([PICTURE] * FRAMES, fps=None)
                stream = client.stream_frames(source, model="scripted", policy="lossless")
                seqs = [result.seq async for result in stream]
                assert seqs == list(range(FRAMES))
                return stream.statistics

            all_statistics = await asyncio.gather(*(send_all() for _ in range(STREAMS)))
    for statistics in all_statistics:
        assert statistics.receipts_add_up
        assert statistics.closed is not None
        assert (statistics.closed.results, statistics.closed.dropped) == (FRAMES, 0)
