"""What streams of every kind have in common."""

from __future__ import annotations

from typing import Generic, TypeVar

from engine.types import DropReason
from gateway.stream.ack_window import AckWindow, EventAcks
from gateway.stream.tally import Tally
from gateway.wire.protocol import STREAM, StreamEvent, StreamState, advance

Acks = TypeVar("Acks", AckWindow, EventAcks)


class OpenStream(Generic[Acks]):
    """State, receipts and acknowledgements of one stream, whatever it carries."""

    # On every token's path: see ``gateway.stream.stream_queue.StreamQueue``.
    __slots__ = ("acks", "id", "model", "state", "tally")

    def __init__(self, stream_id: int, model: str, acks: Acks) -> None:
        self.id = stream_id
        self.model = model
        self.state = StreamState.OPEN
        self.tally = Tally()
        self.acks: Acks = acks

    @property
    def is_answered(self) -> bool:
        """Whether everything accepted has its receipt in the outbox, or further."""
        raise NotImplementedError

    def detach(self, reason: DropReason) -> None:
        """The connection is lost, and may be replaced: what it leaves open is settled here."""
        raise NotImplementedError

    def advance(self, event: StreamEvent) -> None:
        """Move on; raises UnexpectedMessage and changes nothing when the event does not fit."""
        self.state = advance(STREAM, self.state, event)
