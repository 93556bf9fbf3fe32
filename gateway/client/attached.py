"""What a connection and its streams ask of each other."""

from __future__ import annotations

from typing import Protocol, runtime_checkable

from gateway.client.link import Link
from gateway.wire.codec import BinaryMessage
from gateway.wire.messages import ServerMessage


class AttachedStream(Protocol):
    """A stream as its connection sees it; every call but ``aclose`` returns at once."""

    def on_attached(self, link: Link, stream: int) -> None:
        """There is a connection: open the stream on it under this id."""

    def on_detached(self) -> None:
        """The connection is lost, and what was under way on it; ``on_attached`` follows if there is
        another one and the stream is not finished by then."""

    def on_message(self, message: ServerMessage) -> None:
        """A control message that names this stream."""

    def on_binary(self, message: BinaryMessage) -> None:
        """A whole attachment."""

    def on_tick(self, now: float) -> None:
        """Acknowledge what is due and look at the time-outs."""

    def pause(self) -> None:
        """Send nothing until the next connection; answers are still welcome."""

    def finish(self, error: Exception | None) -> None:
        """Nothing more will come; the first reason counts."""

    async def aclose(self) -> None:
        """Stop the stream; bounded, idempotent."""


@runtime_checkable
class RecoverableStream(AttachedStream, Protocol):
    """A stream of events that the server keeps for a while, and tells again on another connection.

    A lost connection suspends it; then it is resumed, or detached if that is not possible.
    """

    @property
    def last_seq(self) -> int:
        """Of the newest event that has come; -1 before the first."""

    def on_suspended(self) -> None:
        """The connection is lost."""

    def on_resumed(self, link: Link, num_received: int) -> None:
        """The stream goes on, on another connection: the next event follows ``last_seq``. The
        server has received that many prompts of it."""


class StreamOwner(Protocol):
    """The connection's side of a stream."""

    def start_stream(self, stream: AttachedStream) -> None:
        """Open the stream now, and again after each reconnect; may raise a ClientError."""

    def reopen_stream(self, stream: AttachedStream) -> None:
        """Try once more on the same connection."""

    def forget_stream(self, stream: AttachedStream) -> None:
        """The stream is over; idempotent."""
