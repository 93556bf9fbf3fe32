"""One connection: endings, order, bounds. On virtual time, with a socket in memory."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, replace
from typing import cast

import pytest
from aiohttp import WSMsgType

from gateway.errors import CloseCode, ConnectionFault, ProblemKind
from gateway.net.connection import MESSAGES_PER_TURN, Connection
from gateway.net.ending import ABNORMAL, Ending
from gateway.net.websocket import Socket
from gateway.net.write_turn import WriteTurn
from gateway.stream.entries import Keep, Outgoing, OutgoingKind
from gateway.stream.network_estimate import PathSample
from gateway.stream.outbox import Outbox
from gateway.wire.codec import decode_server
from gateway.wire.messages import ErrorMessage, Ping
from tests.fakes.sockets import FakeSocket, RecordingSession
from tests.fakes.virtual_time import run_until, settle, virtual_time

pytestmark = pytest.mark.unit


@dataclass
class Rig:
    socket: FakeSocket
    session: RecordingSession
    outbox: Outbox
    connection: Connection
    run: asyncio.Task[Ending]

    async def ending(self) -> Ending:
        ending = await self.run
        names = {task.get_name() for task in asyncio.all_tasks()}
        assert not any(self.connection.name in name for name in names)
        assert self.session.close_reasons
        return ending

    def error(self) -> ErrorMessage:
        message = decode_server(self.socket.texts()[-1])
        assert isinstance(message, ErrorMessage)
        return message


async def start() -> Rig:
    socket, session = FakeSocket(), RecordingSession()
    outbox = Outbox(max_bytes=1 << 20)
    connection = Connection(
        cast(Socket, socket),
        outbox,
        name="c1",
        turn=WriteTurn(),
        send_timeout_s=5.0,
        max_messages_per_s=50.0,
    )
    connection.session = session
    run = asyncio.create_task(connection.run())
    await settle()
    return Rig(socket, session, outbox, connection, run)


@virtual_time
async def test_messages_reach_the_session_in_order() -> None:
    rig = await start()
    rig.socket.deliver(WSMsgType.TEXT, b"a")
    rig.socket.deliver(WSMsgType.BINARY, b"b")
    await settle()
    assert rig.session.received == [b"a", b"b"]
    assert (rig.connection.traffic.messages_in, rig.connection.traffic.bytes_in) == (2, 2)


@virtual_time
async def test_what_is_put_into_the_outbox_is_sent_and_told() -> None:
    rig = await start()
    rig.outbox.put_control(Ping(t=1))
    await settle()
    assert rig.socket.texts() == [b'{"type":"ping","t":1}']
    assert len(rig.session.sent) == 1


@virtual_time
async def test_messages_that_are_ready_together_leave_in_one_write() -> None:
    rig = await start()
    for number in range(5):
        rig.outbox.put_control(Ping(t=number))
    await settle()
    assert len(rig.socket.sent) == 5
    assert rig.socket.num_writes == 1


@virtual_time
async def test_close_by_the_peer_is_answered_with_1000() -> None:
    rig = await start()
    rig.socket.deliver(WSMsgType.CLOSE, 1001)
    ending = await rig.ending()
    assert ending.code == 1001
    assert rig.socket.close_frame == (1000, "")
    assert rig.socket.is_closed


@virtual_time
async def test_close_without_a_code_counts_as_1005() -> None:
    rig = await start()
    rig.socket.deliver(WSMsgType.CLOSE, 0)
    assert (await rig.ending()).code == 1005


@virtual_time
async def test_fault_is_told_before_the_close_frame() -> None:
    rig = await start()
    rig.session.fault = ConnectionFault(CloseCode.INVALID_DATA, ProblemKind.INVALID_MESSAGE, "no")
    rig.socket.deliver(WSMsgType.TEXT, b"{")
    await settle()
    assert rig.error().problem.detail == "no"
    assert rig.socket.close_frame == (1007, "invalid-message")
    rig.socket.deliver(WSMsgType.CLOSE, 1007)
    assert (await rig.ending()).code == 1007
    assert rig.session.close_reasons[0] == "code 1007, invalid-message"


@virtual_time
async def test_nothing_reaches_the_session_after_the_end_was_decided() -> None:
    rig = await start()
    rig.connection.fail(ConnectionFault(CloseCode.NO_PONG, ProblemKind.TIMEOUT))
    rig.socket.deliver(WSMsgType.TEXT, b"late")
    await settle()
    assert rig.session.received == []


@virtual_time
async def test_peer_that_never_closes_is_aborted_after_a_second() -> None:
    rig = await start()
    rig.connection.fail(ConnectionFault(CloseCode.NO_PONG, ProblemKind.TIMEOUT))
    await run_until(0.9)
    assert not rig.socket.is_aborted
    await run_until(1.1)
    assert rig.socket.is_aborted
    await rig.ending()


@virtual_time
async def test_peer_that_keeps_sending_after_the_close_is_aborted_too() -> None:
    rig = await start()
    rig.connection.end(Ending(code=1012, reason="restarting"))
    for step in range(12):
        rig.socket.deliver(WSMsgType.TEXT, b"x")
        await run_until(step * 0.1)
    assert rig.socket.is_aborted


@virtual_time
async def test_peer_that_breaks_the_protocol_is_told_why() -> None:
    rig = await start()
    rig.socket.break_rules(
        ConnectionFault(CloseCode.TOO_BIG, ProblemKind.FRAME_TOO_LARGE, "too long")
    )
    await settle()
    assert rig.error().problem.detail == "too long"
    assert rig.socket.close_frame == (1009, "frame-too-large")
    assert (await rig.ending()).code == 1009


@virtual_time
async def test_lost_connection_ends_at_once_and_without_words() -> None:
    rig = await start()
    rig.socket.leave()
    assert (await rig.ending()).code == ABNORMAL
    assert rig.socket.sent == []


@virtual_time
async def test_cancelled_handler_means_a_lost_connection() -> None:
    rig = await start()
    rig.run.cancel()
    with pytest.raises(asyncio.CancelledError):
        await rig.run
    assert rig.connection.code == ABNORMAL
    assert rig.session.close_reasons == ["code 1006, connection lost"]


def held(num_bytes: int) -> PathSample:
    """What the kernel says when it has so much that nobody acknowledges."""
    return PathSample(
        rtt_s=0.01, rttvar_s=0.0, num_segments=9, num_retransmitted=0, num_bytes_held=num_bytes
    )


async def look_each_second(rig: Rig, until: int) -> None:
    while (second := round(asyncio.get_running_loop().time())) < until and not rig.run.done():
        rig.connection.sample_network()
        await run_until(second + 1)


@virtual_time
async def test_reader_that_stalls_is_aborted_at_the_deadline() -> None:
    rig = await start()
    rig.socket.stall()
    rig.socket.path = held(9_000)
    rig.outbox.put_control(Ping(t=1))
    await look_each_second(rig, until=5)
    assert not rig.run.done()
    await look_each_second(rig, until=7)
    assert (await rig.ending()).code == CloseCode.SLOW_READER
    assert rig.socket.is_aborted
    assert rig.socket.sent == []


@virtual_time
async def test_reader_that_stalls_is_aborted_though_nothing_waits_for_it_here() -> None:
    rig = await start()
    rig.socket.path = held(9_000)
    await look_each_second(rig, until=7)
    assert (await rig.ending()).code == CloseCode.SLOW_READER


@virtual_time
async def test_a_reader_that_makes_the_writer_wait_but_reads_on_stays() -> None:
    rig = await start()
    rig.socket.stall()
    rig.outbox.put_control(Ping(t=1))
    for second in range(100):
        rig.socket.path = replace(held(9_000), num_bytes_acked=9_000 * second)
        await look_each_second(rig, until=second + 1)
    assert not rig.run.done()
    rig.socket.resume()
    await settle()
    assert rig.outbox.is_empty


@virtual_time
async def test_message_is_chosen_after_the_drain() -> None:
    rig = await start()
    rig.socket.stall()
    rig.outbox.put_control(Ping(t=1))
    await settle()
    assert not rig.outbox.is_empty
    rig.socket.resume()
    await settle()
    assert rig.outbox.is_empty


@virtual_time
async def test_pings_of_a_stalled_reader_leave_one_pong() -> None:
    rig = await start()
    rig.socket.stall()
    for number in range(20):
        rig.socket.deliver(WSMsgType.PING, b"%d" % number)
    await settle()
    rig.socket.resume()
    await settle()
    assert rig.socket.sent == [(WSMsgType.PONG, b"19")]


@virtual_time
async def test_flood_ends_the_connection() -> None:
    rig = await start()
    for _ in range(60):
        rig.socket.deliver(WSMsgType.PING, b"")
    await settle()
    assert rig.connection.code == CloseCode.QUOTA
    assert rig.error().problem.status == 429


@virtual_time
async def test_fault_of_ours_is_1011_and_tells_nothing(caplog: pytest.LogCaptureFixture) -> None:
    rig = await start()
    rig.session.fault = RuntimeError("secret")
    rig.socket.deliver(WSMsgType.TEXT, b"x")
    await settle()
    assert rig.connection.code == CloseCode.INTERNAL_ERROR
    assert b"secret" not in rig.socket.texts()[-1]
    assert "RuntimeError: secret" in caplog.text
    await rig.ending()


@virtual_time
async def test_connection_is_idle_when_session_and_outbox_are() -> None:
    rig = await start()
    rig.socket.stall()
    assert rig.connection.is_idle
    rig.outbox.put_control(Ping(t=1))
    assert not rig.connection.is_idle
    rig.socket.resume()
    await settle()
    assert rig.connection.is_idle
    rig.session.is_idle = False
    assert not rig.connection.is_idle


@virtual_time
async def test_first_reason_wins() -> None:
    rig = await start()
    rig.connection.end(Ending(code=1012, reason="restarting"))
    rig.connection.fail(ConnectionFault(CloseCode.NO_PONG, ProblemKind.TIMEOUT))
    rig.connection.abort()
    assert (await rig.ending()).code == 1012


# --- events that leave at once


async def start_with_stream() -> Rig:
    rig = await start()
    rig.outbox.open_stream(1, weight=1.0, keep=Keep.ALL)
    return rig


def event(seq: int) -> Outgoing:
    return Outgoing(kind=OutgoingKind.EVENT, data=b"event %d" % seq, stream=1, seq=seq)


def tell(rig: Rig, seq: int) -> bool:
    """As a session does; returns whether the event passed."""
    if rig.outbox.pass_by(event(seq)):
        return True
    rig.outbox.put(1, event(seq))
    return False


def events_sent(rig: Rig) -> list[int]:
    return [int(text.removeprefix(b"event ")) for text in rig.socket.texts()]


@virtual_time
async def test_events_that_pass_leave_in_the_next_turn_with_one_write_for_all() -> None:
    rig = await start_with_stream()
    assert [tell(rig, seq) for seq in range(3)] == [True] * 3
    rig.outbox.put(1, event(3))
    rig.outbox.put(1, event(4))
    assert rig.socket.sent == []
    await asyncio.sleep(0)
    assert events_sent(rig) == list(range(5))
    assert rig.socket.num_writes == 1


@virtual_time
async def test_what_is_put_after_events_that_passed_leaves_after_them() -> None:
    rig = await start_with_stream()
    assert tell(rig, 0)
    rig.outbox.put(1, event(1))
    assert not tell(rig, 2)
    rig.outbox.put(1, event(3))
    await settle()
    assert tell(rig, 4)
    await settle()
    assert events_sent(rig) == list(range(5))
    assert [outgoing.seq for outgoing in rig.session.sent] == [1, 2, 3]  # of the others it knows


@virtual_time
async def test_more_than_one_turn_takes_leaves_by_itself_in_the_next() -> None:
    rig = await start_with_stream()
    for seq in range(MESSAGES_PER_TURN + 1):
        rig.outbox.put(1, event(seq))
    await asyncio.sleep(0)
    assert len(rig.socket.sent) == MESSAGES_PER_TURN
    await settle()
    assert events_sent(rig) == list(range(MESSAGES_PER_TURN + 1))


@virtual_time
async def test_nothing_passes_what_is_left_for_the_next_turn() -> None:
    rig = await start_with_stream()
    for seq in range(MESSAGES_PER_TURN + 1):
        rig.outbox.put(1, event(seq))
    await asyncio.sleep(0)
    assert not tell(rig, MESSAGES_PER_TURN + 1)
    await settle()
    assert events_sent(rig) == list(range(MESSAGES_PER_TURN + 2))


@virtual_time
async def test_what_the_last_message_of_a_turn_sets_free_leaves_in_the_same_write() -> None:
    rig = await start_with_stream()
    passed: list[bool] = []
    rig.session.on_sent = lambda outgoing: passed.append(tell(rig, 1))
    rig.outbox.put(1, event(0))
    await settle()
    assert passed == [True]
    assert events_sent(rig) == [0, 1]
    assert rig.socket.num_writes == 1


@virtual_time
async def test_nothing_passes_while_the_transport_has_no_room() -> None:
    rig = await start_with_stream()
    rig.socket.stall()
    assert not tell(rig, 0)
    await settle()
    assert rig.socket.sent == []
    rig.socket.resume()
    await settle()
    assert tell(rig, 1)
    await settle()
    assert events_sent(rig) == [0, 1]


@virtual_time
async def test_nothing_passes_a_pong_that_is_due() -> None:
    rig = await start_with_stream()
    rig.socket.deliver(WSMsgType.PING, b"7")
    await asyncio.sleep(0)  # the reader has it now, the writer's turn is the next
    assert not tell(rig, 0)
    await settle()
    assert rig.socket.sent == [(WSMsgType.PONG, b"7"), (WSMsgType.TEXT, b"event 0")]


@virtual_time
async def test_nothing_passes_once_the_end_was_decided() -> None:
    rig = await start_with_stream()
    rig.connection.end(Ending(code=1012, reason="restarting"))
    assert not rig.outbox.pass_by(event(0))
    await settle()
    assert not rig.outbox.pass_by(event(1))
    assert rig.socket.texts() == []
    assert rig.connection.traffic.messages_out == 0


@virtual_time
async def test_what_passed_before_the_end_leaves_before_the_close_frame() -> None:
    rig = await start_with_stream()
    assert tell(rig, 0)
    rig.connection.end(Ending(code=1012, reason="restarting"))
    await settle()
    assert [kind for kind, _ in rig.socket.sent] == [WSMsgType.TEXT, WSMsgType.CLOSE]


@virtual_time
async def test_traffic_counts_what_passed() -> None:
    rig = await start_with_stream()
    assert tell(rig, 0)
    assert tell(rig, 1)
    rig.outbox.put(1, event(2))
    await settle()
    traffic = rig.connection.traffic
    assert (traffic.messages_out, traffic.bytes_out) == (3, 3 * len(b"event 0"))


@virtual_time
async def test_a_transport_that_is_gone_when_an_event_passes_is_a_lost_connection() -> None:
    """Its buffer has overflowed. The event counts as sent: it is told again, like all others that
    never arrived."""
    rig = await start_with_stream()
    rig.socket.abort()
    assert rig.outbox.pass_by(event(0))
    assert not rig.outbox.pass_by(event(1))
    ending = await rig.ending()
    assert ending.is_loss
    assert rig.session.close_reasons[0] == "code 1006, connection lost"
    assert rig.socket.sent == []


@virtual_time
async def test_a_transport_that_is_gone_before_the_write_is_a_lost_connection() -> None:
    rig = await start_with_stream()
    assert tell(rig, 0)
    rig.socket.abort()
    assert (await rig.ending()).is_loss
    assert rig.socket.sent == []
