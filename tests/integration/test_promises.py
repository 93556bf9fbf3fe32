"""The promises of the README, kept by a real gateway with real workers under real load."""

from __future__ import annotations

import asyncio
from pathlib import Path

import psutil
import pytest
from websockets.asyncio.client import connect as connect_websocket
from websockets.exceptions import ConnectionClosed
from websockets.typing import Subprotocol

from gateway.client import ClientError, Event, FrameResult, connect, frames_from_bytes
from gateway.wire.codec import FrameHeader, MessageType, encode, encode_binary
from gateway.wire.messages import SUBPROTOCOL, Hello, Open, StreamOptions
from loadtest.gateway_process import GatewayProcess
from tests.fakes.pictures import encode as encode_picture
from tests.fakes.pictures import gradient
from tests.fakes.raw_websocket import BINARY, RawWebSocket
from tests.fakes.served_pipeline import serve_scripted

pytestmark = pytest.mark.integration

PICTURE = encode_picture(gradient(64, 48))


async def test_lossless_gets_every_result_in_order_from_two_workers_of_unlike_speed(
    tmp_path: Path,
) -> None:
    options = {"run_s": 0.002, "slow_worker": 1, "slow_run_s": 0.03}
    serving = {"workers": 2, "max_batch_size": 4}
    with serve_scripted(tmp_path, options=options, serving=serving) as gateway:
        source = frames_from_bytes([PICTURE] * 1000, fps=None)
        async with connect(gateway.url) as client:
            stream = client.stream_frames(source, model="scripted", policy="lossless")
            results = [result async for result in stream]
    assert [result.seq for result in results] == sorted({result.seq for result in results})
    assert len(results) == 1000
    assert stream.statistics.receipts_add_up
    assert stream.statistics.closed is not None
    assert stream.statistics.closed.results == 1000
    assert {result.data["worker"] for result in results} == {0, 1}


async def test_a_deadline_is_told_on_time_while_the_model_is_blocked(tmp_path: Path) -> None:
    drops: list[tuple[float, Event]] = []
    loop = asyncio.get_running_loop()

    def note(event: Event) -> None:
        if event.name == "drop":
            drops.append((loop.time(), event))

    with serve_scripted(tmp_path, options={"run_s": 5.0}) as gateway:
        async with connect(gateway.url) as client:
            source = frames_from_bytes([PICTURE], fps=None)
            stream = client.stream_frames(
                source, model="scripted", policy="fifo", deadline_ms=100.0, on_event=note
            )
            started = loop.time()
            assert [result async for result in stream] == []
    assert stream.statistics.dropped == {"deadline": 1}
    # The bound is generous to a busy machine; what matters is that it is not five seconds.
    assert 0.1 <= drops[0][0] - started < 4.0


async def test_a_killed_worker_costs_no_frame_and_no_connection(tmp_path: Path) -> None:
    serving = {"workers": 2, "max_batch_size": 4}
    with serve_scripted(tmp_path, options={"run_s": 0.01}, serving=serving) as gateway:
        events: list[str] = []
        async with connect(
            gateway.url, reconnect=False, on_event=lambda event: events.append(event.name)
        ) as client:
            source = frames_from_bytes([PICTURE] * 200, fps=None)
            stream = client.stream_frames(source, model="scripted", policy="lossless")
            results: list[FrameResult] = []
            async for result in stream:
                results.append(result)
                if len(results) == 60:
                    psutil.Process(result.data["pid"]).kill()
        assert len(results) == 200
        assert stream.statistics.receipts_add_up
        assert "disconnected" not in events
        pid = gateway.pid
        workers = gateway.worker_pids
        assert gateway.stop() == 0
    assert not psutil.pid_exists(pid)
    assert not any(psutil.pid_exists(worker) for worker in workers)


async def test_nothing_outlives_a_killed_gateway(tmp_path: Path) -> None:
    with serve_scripted(tmp_path, serving={"workers": 2}) as gateway:
        workers = [psutil.Process(pid) for pid in gateway.worker_pids]
        assert len(workers) == 2
        assert gateway.process is not None
        gateway.process.kill()
        gateway.process.wait(10)
        gone, alive = psutil.wait_procs(workers, timeout=5)
        assert alive == []
        assert len(gone) == 2


async def test_a_stalled_client_does_not_delay_the_end(tmp_path: Path) -> None:
    sections = "[server]\nshutdown_budget_s = 4.0"
    with (
        serve_scripted(tmp_path, options={"run_s": 0.01}, sections=sections) as gateway,
        RawWebSocket(gateway.port, receive_buffer_bytes=4096) as raw,
    ):
        await stall(raw)
        code, events = await asyncio.gather(last_close_code(gateway), terminate_under_load(gateway))
    assert code == 1012
    assert "goaway" in events


async def terminate_under_load(gateway: GatewayProcess) -> list[str]:
    """SIGTERM while frames are in flight; the gateway ends with 0 within its budget."""
    events: list[str] = []
    async with connect(
        gateway.url, reconnect=False, on_event=lambda event: events.append(event.name)
    ) as client:
        source = frames_from_bytes([PICTURE], fps=100.0, loop=True)
        stream = client.stream_frames(source, model="scripted")
        iterator = aiter(stream)
        for _ in range(20):
            await anext(iterator)
        stopping = asyncio.create_task(asyncio.to_thread(gateway.stop))
        with pytest.raises(ClientError):
            async for _ in iterator:
                pass
        async with asyncio.timeout(8.0):
            assert await stopping == 0
    return events


async def last_close_code(gateway: GatewayProcess) -> int | None:
    """An idle client's view: which code ends its connection."""
    async with connect_websocket(
        f"{gateway.url}/v1/stream", subprotocols=[Subprotocol(SUBPROTOCOL)], compression=None
    ) as websocket:
        await websocket.send(encode(Hello()).decode())
        try:
            while True:
                await websocket.recv()
        except ConnectionClosed:
            return websocket.close_code


async def stall(raw: RawWebSocket) -> None:
    """Ask for many annotated results and read none of them."""
    await raw.handshake()
    await raw.send(encode(Hello()))
    options = StreamOptions(annotate="boxes")
    await raw.send(encode(Open(stream=1, model="scripted", options=options)))
    for seq in range(1, 5):
        header = FrameHeader(type=MessageType.FRAME, stream=1, seq=seq, t_us=0)
        await raw.send(encode_binary(header, PICTURE), opcode=BINARY)
