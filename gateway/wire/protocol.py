"""State tables of ``clawstream.v1``: what may happen when, for both ends of the socket.

An event that the table does not list raises ``UnexpectedMessage`` and changes nothing. A stream
that is CLOSED ignores what was still under way to it, hence its entries for late messages.
"""

from __future__ import annotations

from collections.abc import Mapping
from enum import Enum
from typing import TypeVar

from gateway.wire.codec import UnexpectedMessage
from gateway.wire.messages import (
    Ack,
    Cancel,
    ClientPong,
    Close,
    EndInput,
    Hello,
    Open,
    Ping,
    Prompt,
)


class ConnectionState(Enum):
    """Life of a session, which may outlive its connection."""

    AWAITING_HELLO = "awaiting hello"
    READY = "ready"
    DETACHED = "detached"  # the connection is lost, the client may come back on another one
    DRAINING = "draining"  # after goaway: open streams finish, no new ones
    CLOSED = "closed"


class ConnectionEvent(Enum):
    """What moves a session on."""

    HELLO = "hello"
    OPEN = "open"
    STREAM = "stream message"  # text or binary, about an open stream
    LIVENESS = "ping or pong"
    GOAWAY = "goaway"
    LOSE = "lose"  # the connection, while the session may be resumed
    RESUME = "resume"  # on another connection
    CLOSE = "close"  # by either side, or lost for good


CONNECTION: Mapping[tuple[ConnectionState, ConnectionEvent], ConnectionState] = {
    (ConnectionState.AWAITING_HELLO, ConnectionEvent.HELLO): ConnectionState.READY,
    (ConnectionState.AWAITING_HELLO, ConnectionEvent.CLOSE): ConnectionState.CLOSED,
    (ConnectionState.READY, ConnectionEvent.OPEN): ConnectionState.READY,
    (ConnectionState.READY, ConnectionEvent.STREAM): ConnectionState.READY,
    (ConnectionState.READY, ConnectionEvent.LIVENESS): ConnectionState.READY,
    (ConnectionState.READY, ConnectionEvent.GOAWAY): ConnectionState.DRAINING,
    (ConnectionState.READY, ConnectionEvent.LOSE): ConnectionState.DETACHED,
    (ConnectionState.READY, ConnectionEvent.CLOSE): ConnectionState.CLOSED,
    (ConnectionState.DETACHED, ConnectionEvent.RESUME): ConnectionState.READY,
    (ConnectionState.DETACHED, ConnectionEvent.CLOSE): ConnectionState.CLOSED,
    (ConnectionState.DRAINING, ConnectionEvent.STREAM): ConnectionState.DRAINING,
    (ConnectionState.DRAINING, ConnectionEvent.LIVENESS): ConnectionState.DRAINING,
    (ConnectionState.DRAINING, ConnectionEvent.GOAWAY): ConnectionState.DRAINING,
    (ConnectionState.DRAINING, ConnectionEvent.CLOSE): ConnectionState.CLOSED,
    (ConnectionState.CLOSED, ConnectionEvent.CLOSE): ConnectionState.CLOSED,
}


class StreamState(Enum):
    """Life of a stream."""

    IDLE = "idle"  # its id has not been used
    OPEN = "open"
    ENDING = "ending"  # no more input; what is accepted is still answered
    CLOSING = "closing"  # stopped; ``closed`` has not been sent yet
    CLOSED = "closed"


class StreamEvent(Enum):
    """What moves a stream on."""

    OPEN = "open"
    INPUT = "input"  # a frame, tensors or a prompt
    FEEDBACK = "ack or cancel"
    END = "end"
    CLOSE = "close"
    FINISHED = "finished"  # everything accepted is answered: ``closed`` goes out


STREAM: Mapping[tuple[StreamState, StreamEvent], StreamState] = {
    (StreamState.IDLE, StreamEvent.OPEN): StreamState.OPEN,
    (StreamState.OPEN, StreamEvent.INPUT): StreamState.OPEN,
    (StreamState.OPEN, StreamEvent.FEEDBACK): StreamState.OPEN,
    (StreamState.OPEN, StreamEvent.END): StreamState.ENDING,
    (StreamState.OPEN, StreamEvent.CLOSE): StreamState.CLOSING,
    (StreamState.ENDING, StreamEvent.FEEDBACK): StreamState.ENDING,
    # Told again by a client that came back and cannot know whether it got through.
    (StreamState.ENDING, StreamEvent.END): StreamState.ENDING,
    (StreamState.ENDING, StreamEvent.CLOSE): StreamState.CLOSING,
    (StreamState.ENDING, StreamEvent.FINISHED): StreamState.CLOSED,
    (StreamState.CLOSING, StreamEvent.INPUT): StreamState.CLOSING,
    (StreamState.CLOSING, StreamEvent.FEEDBACK): StreamState.CLOSING,
    (StreamState.CLOSING, StreamEvent.END): StreamState.CLOSING,
    (StreamState.CLOSING, StreamEvent.CLOSE): StreamState.CLOSING,
    (StreamState.CLOSING, StreamEvent.FINISHED): StreamState.CLOSED,
    (StreamState.CLOSED, StreamEvent.INPUT): StreamState.CLOSED,
    (StreamState.CLOSED, StreamEvent.FEEDBACK): StreamState.CLOSED,
    (StreamState.CLOSED, StreamEvent.END): StreamState.CLOSED,
    (StreamState.CLOSED, StreamEvent.CLOSE): StreamState.CLOSED,
}

# Which event a client's control message is; binary messages are INPUT and STREAM.
STREAM_EVENTS: Mapping[type, StreamEvent] = {
    Open: StreamEvent.OPEN,
    Prompt: StreamEvent.INPUT,
    Ack: StreamEvent.FEEDBACK,
    Cancel: StreamEvent.FEEDBACK,
    EndInput: StreamEvent.END,
    Close: StreamEvent.CLOSE,
}
CONNECTION_EVENTS: Mapping[type, ConnectionEvent] = {
    Hello: ConnectionEvent.HELLO,
    Open: ConnectionEvent.OPEN,
    Prompt: ConnectionEvent.STREAM,
    Ack: ConnectionEvent.STREAM,
    Cancel: ConnectionEvent.STREAM,
    EndInput: ConnectionEvent.STREAM,
    Close: ConnectionEvent.STREAM,
    Ping: ConnectionEvent.LIVENESS,
    ClientPong: ConnectionEvent.LIVENESS,
}

_State = TypeVar("_State", bound=Enum)
_Event = TypeVar("_Event", bound=Enum)


def advance(table: Mapping[tuple[_State, _Event], _State], state: _State, event: _Event) -> _State:
    """The next state.

    Raises:
        UnexpectedMessage: the event has no meaning in this state.
    """
    following = table.get((state, event))
    if following is None:
        raise UnexpectedMessage(f"{event.value!r} does not fit the state {state.value!r}")
    return following
