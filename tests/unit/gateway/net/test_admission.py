"""Places for connections, and the table's counters."""

from __future__ import annotations

import asyncio
from contextlib import ExitStack
from typing import cast

import pytest
from aiohttp import WSMsgType

from gateway.errors import ProblemKind, RequestProblem
from gateway.net.admission import ConnectionTable
from gateway.net.connection import Connection
from gateway.net.ending import Ending
from gateway.net.websocket import Socket
from gateway.stream.network_estimate import PathSample
from gateway.stream.network_state import NetworkState
from gateway.stream.outbox import Outbox
from tests.fakes.sockets import FakeSocket, RecordingSession
from tests.fakes.virtual_time import settle, virtual_time

pytestmark = pytest.mark.unit


def connect(table: ConnectionTable) -> tuple[FakeSocket, Connection, asyncio.Task[Ending]]:
    socket = FakeSocket()
    connection = Connection(
        cast(Socket, socket),
        Outbox(max_bytes=1 << 20),
        name="c",
        turn=table.write_turn,
        send_timeout_s=1.0,
        max_messages_per_s=100.0,
    )
    connection.session = RecordingSession()
    return socket, connection, asyncio.create_task(table.serve(connection))


@virtual_time
async def test_places_are_limited_and_given_back() -> None:
    table = ConnectionTable(2)
    with ExitStack() as stack:
        stack.enter_context(table.place())
        stack.enter_context(table.place())
        with pytest.raises(RequestProblem) as caught, table.place():
            pass
        assert caught.value.kind is ProblemKind.OVERLOADED
        assert caught.value.retry_after_ms
    with table.place():
        assert table.statistics().refused == 1


@virtual_time
async def test_place_is_given_back_when_the_handshake_fails() -> None:
    table = ConnectionTable(1)
    with pytest.raises(ValueError, match="bad"), table.place():
        raise ValueError("bad")
    with table.place():
        pass


@virtual_time
async def test_nobody_gets_a_place_while_shutting_down() -> None:
    table = ConnectionTable(2)
    table.refuse_new()
    with pytest.raises(RequestProblem, match="shutting-down"), table.place():
        pass


@virtual_time
async def test_connections_are_counted_with_their_traffic_and_code() -> None:
    table = ConnectionTable(4)
    socket, _, run = connect(table)
    await settle()
    socket.deliver(WSMsgType.TEXT, b"abc")
    await settle()
    assert (table.statistics().open, table.statistics().bytes_in) == (1, 3)
    socket.deliver(WSMsgType.CLOSE, 1000)
    await run
    after = table.statistics()
    assert (after.open, after.accepted, after.bytes_in, after.closed) == (0, 1, 3, {1000: 1})


@virtual_time
async def test_networks_are_told_and_segments_survive_their_connection() -> None:
    table = ConnectionTable(4)
    found = [connect(table) for _ in range(3)]
    await settle()
    for number, (socket, connection, _) in enumerate(found):
        socket.path = PathSample(
            rtt_s=0.01, rttvar_s=0.0, num_segments=100, num_retransmitted=number
        )
        connection.sample_network()
        cast(RecordingSession, connection.session).network = NetworkState(rtt_ms=10.0 * number)
    now = table.statistics()
    assert sorted(network.rtt_ms for network in now.networks) == [0, 10, 20]
    assert (now.segments_out, now.segments_again) == (300, 3)
    table.abort_all()
    assert await table.wait_empty(asyncio.get_running_loop().time() + 2)
    after = table.statistics()
    assert (after.segments_out, after.segments_again, after.networks) == (300, 3, ())


@virtual_time
async def test_all_are_ended_and_the_table_becomes_empty() -> None:
    table = ConnectionTable(4)
    sockets = [connect(table)[0] for _ in range(3)]
    await settle()
    loop = asyncio.get_running_loop()
    assert not await table.wait_empty(loop.time())
    table.end_all(Ending(code=1012, reason="restarting"))
    assert await table.wait_empty(loop.time() + 2)
    assert [socket.close_frame for socket in sockets] == [(1012, "restarting")] * 3
    assert table.statistics().closed == {1012: 3}


@virtual_time
async def test_abort_needs_no_peer() -> None:
    table = ConnectionTable(4)
    socket, _, run = connect(table)
    await settle()
    socket.stall()
    table.abort_all()
    await run
    assert socket.is_aborted


@virtual_time
async def test_idle_is_waited_for_until_the_deadline() -> None:
    table = ConnectionTable(4)
    _, connection, _ = connect(table)
    await settle()
    session = cast(RecordingSession, connection.session)
    session.is_idle = False
    loop = asyncio.get_running_loop()
    await table.wait_idle(loop.time() + 1)
    assert loop.time() == pytest.approx(1, abs=0.05)
    loop.call_later(0.5, setattr, session, "is_idle", True)
    await table.wait_idle(loop.time() + 10)
    assert loop.time() == pytest.approx(1.5, abs=0.05)
    table.abort_all()
    await settle()
