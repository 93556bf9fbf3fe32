"""What the watch holds against a client, and what it does not: the time in which we slept."""

from __future__ import annotations

import pytest

from gateway.config_sections import LimitsConfig
from gateway.errors import CloseCode
from gateway.wire.messages import Ack, ClientPong, Hello, Ping
from tests.fakes.session_client import SessionClient

pytestmark = pytest.mark.unit

ASLEEP_S = 60.0


def pinged() -> tuple[SessionClient, Ping]:
    """A client that has just read a ping."""
    client = SessionClient().hello()
    while not (pings := client.receive_only(Ping)):
        client.loop.advance(0.5)
    return client, pings[-1]


def test_a_pong_that_came_while_the_process_slept_counts() -> None:
    client, ping = pinged()
    client.loop.stand_still(ASLEEP_S)
    client.loop.advance(0.0)  # timers are first in a loop's turn, sockets come after them
    client.send(ClientPong(t=ping.t))
    client.loop.advance(1.0)
    assert client.faults == []


def test_a_hello_that_came_while_the_process_slept_counts() -> None:
    client = SessionClient()
    client.loop.stand_still(ASLEEP_S)
    client.loop.advance(0.0)
    client.send(Hello())
    client.loop.advance(LimitsConfig().hello_timeout_s)
    assert client.faults == []


def test_who_answers_nothing_after_the_sleep_either_is_gone_soon() -> None:
    client, _ = pinged()
    client.loop.stand_still(ASLEEP_S)
    client.loop.advance(LimitsConfig().ping_interval_s)
    assert [fault.code for fault in client.faults] == [CloseCode.NO_PONG]


def test_a_process_that_is_late_with_everything_still_judges() -> None:
    client, _ = pinged()
    for _ in range(10):
        client.loop.stand_still(ASLEEP_S / 10)
        client.loop.advance(0.0)
    assert [fault.code for fault in client.faults] == [CloseCode.NO_PONG]


def unacknowledged() -> SessionClient:
    """A client that has read 16 results and acknowledged none, until the time is nearly over."""
    limits = LimitsConfig(ack_deadline_s=4.0, ping_interval_s=1000.0)
    client = SessionClient(limits=limits).hello()
    lane = client.open(1)
    for seq in range(16):
        client.send_frame(seq)
        lane.answer(seq)
        client.receive()
    client.loop.advance(3.4)
    return client


@pytest.mark.parametrize("hangs_s", [0.7, 1.5, 30.0])
def test_an_ack_that_came_while_the_process_hung_counts(hangs_s: float) -> None:
    client = unacknowledged()
    client.loop.stand_still(hangs_s)
    client.loop.advance(0.0)
    client.send(Ack(stream=1, seq=15))
    client.loop.advance(3.0)
    assert client.faults == []


def test_an_ack_counts_that_came_while_the_process_slept_again() -> None:
    client = unacknowledged()
    client.loop.stand_still(ASLEEP_S)
    client.loop.advance(0.5)
    client.loop.stand_still(ASLEEP_S)
    client.loop.advance(0.0)
    client.send(Ack(stream=1, seq=15))
    client.loop.advance(3.0)
    assert client.faults == []
