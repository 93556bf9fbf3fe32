"""The state tables: what they allow, and that they have no dead ends."""

from __future__ import annotations

from typing import get_args

import pytest

from gateway.wire.codec import UnexpectedMessage
from gateway.wire.messages import ClientMessage
from gateway.wire.protocol import (
    CONNECTION,
    CONNECTION_EVENTS,
    STREAM,
    STREAM_EVENTS,
    ConnectionEvent,
    ConnectionState,
    StreamEvent,
    StreamState,
    advance,
)

pytestmark = pytest.mark.unit


def test_stream_lives_from_open_to_closed() -> None:
    state = StreamState.IDLE
    for event in (StreamEvent.OPEN, StreamEvent.INPUT, StreamEvent.END, StreamEvent.FINISHED):
        state = advance(STREAM, state, event)
    assert state is StreamState.CLOSED


@pytest.mark.parametrize(
    ("state", "event"),
    [
        (StreamState.IDLE, StreamEvent.INPUT),
        (StreamState.OPEN, StreamEvent.OPEN),
        (StreamState.ENDING, StreamEvent.INPUT),
        (StreamState.CLOSED, StreamEvent.OPEN),
    ],
)
def test_event_outside_the_table_is_unexpected(state: StreamState, event: StreamEvent) -> None:
    with pytest.raises(UnexpectedMessage) as caught:
        advance(STREAM, state, event)
    assert caught.value.close_code is None


def test_late_messages_of_a_closed_stream_are_ignored() -> None:
    for event in (StreamEvent.INPUT, StreamEvent.FEEDBACK, StreamEvent.END, StreamEvent.CLOSE):
        assert advance(STREAM, StreamState.CLOSED, event) is StreamState.CLOSED


def test_nothing_but_hello_comes_first() -> None:
    for event in ConnectionEvent:
        if event in (ConnectionEvent.HELLO, ConnectionEvent.CLOSE):
            continue
        with pytest.raises(UnexpectedMessage):
            advance(CONNECTION, ConnectionState.AWAITING_HELLO, event)


def test_no_stream_opens_while_draining_and_hello_comes_once() -> None:
    for state, event in (
        (ConnectionState.DRAINING, ConnectionEvent.OPEN),
        (ConnectionState.READY, ConnectionEvent.HELLO),
    ):
        with pytest.raises(UnexpectedMessage):
            advance(CONNECTION, state, event)


def test_every_state_can_be_left_for_closed() -> None:
    for state in ConnectionState:
        assert CONNECTION[state, ConnectionEvent.CLOSE] is ConnectionState.CLOSED
    for state in (StreamState.OPEN, StreamState.ENDING, StreamState.CLOSING):
        closing = STREAM[state, StreamEvent.CLOSE]
        assert STREAM[closing, StreamEvent.FINISHED] is StreamState.CLOSED


def test_every_client_message_is_an_event() -> None:
    assert set(CONNECTION_EVENTS) == set(get_args(ClientMessage))
    stream_messages = {
        message
        for message, event in CONNECTION_EVENTS.items()
        if event in (ConnectionEvent.STREAM, ConnectionEvent.OPEN)
    }
    assert set(STREAM_EVENTS) == stream_messages
