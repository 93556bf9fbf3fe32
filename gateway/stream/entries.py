"""What waits in an outbox, and what the writer takes from it."""

from __future__ import annotations

from enum import Enum

import msgspec

from engine.types import DropReason

# A drop is encoded when it leaves, because it may grow until then; this is about its length.
DROP_BYTES = 120


class Keep(Enum):
    """Which results of a stream a slow reader still gets."""

    ALL = "all"  # whatever happens
    TIMELY = "timely"  # those within their deadlines
    NEWEST = "newest"  # of these, none that a newer one makes worthless


class OutgoingKind(Enum):
    """What a part of the outgoing flow is, for the bookkeeping after it was written."""

    CONTROL = "control"  # about the connection, or a grant of credit
    STREAM = "stream"  # opened, error
    ATTACHMENT = "attachment"  # a piece; its result follows
    RESULT = "result"
    DROP = "drop"
    EVENT = "event"  # token, end or error of a prompt
    CLOSED = "closed"  # the stream's last message


# For the path of a token: looking a member up takes 0.2 us (Python 3.11).
CONTROL, EVENT, CLOSED = OutgoingKind.CONTROL, OutgoingKind.EVENT, OutgoingKind.CLOSED


# Structs without garbage collection, because one of them is made for every token: a frozen
# dataclass takes ten times as long. They hold nothing that could refer back to them.
class Outgoing(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """One WebSocket message for the writer; give it to ``Session.handle_sent`` once written.

    ``seq`` is that of the frame it answers, or of the event. ``num_frames`` receipts are complete
    with this message, the highest for frame ``seq``; ``credit_bytes`` is the payload size of those
    frames. ``deadline`` (loop time) is the frame's own: a result is still worth having before it.
    """

    kind: OutgoingKind
    data: bytes
    is_text: bool = True
    stream: int | None = None
    seq: int | None = None
    deadline: float | None = None
    num_frames: int = 0
    credit_bytes: int = 0

    @property
    def size_bytes(self) -> int:
        return len(self.data)


class ResultGroup(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """A result with its attachments, already encoded: the pieces go first, the result last.

    ``ordinal`` numbers the frames that a stream received, without gaps, whatever their ``seq``;
    ``ready_at`` (loop time) is when the result could have left.
    """

    seq: int
    ordinal: int
    ready_at: float
    deadline: float | None
    credit_bytes: int
    pieces: tuple[bytes, ...]
    text: bytes

    @property
    def size_bytes(self) -> int:
        return len(self.text) + sum(map(len, self.pieces))

    def last_message(self, stream: int) -> Outgoing:
        """The result itself, behind its attachments."""
        return Outgoing(
            kind=OutgoingKind.RESULT,
            data=self.text,
            stream=stream,
            seq=self.seq,
            deadline=self.deadline,
            num_frames=1,
            credit_bytes=self.credit_bytes,
        )


class DropRange(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """Consecutive frames that were given up for the same reason."""

    reason: DropReason
    first_seq: int
    last_seq: int
    first_ordinal: int
    last_ordinal: int
    credit_bytes: int

    @property
    def size_bytes(self) -> int:
        return DROP_BYTES

    @property
    def num_frames(self) -> int:
        return self.last_ordinal - self.first_ordinal + 1

    def merge(self, later: DropRange) -> DropRange | None:
        """Both as one range; None if the reasons differ or a received frame lies between."""
        if later.reason is not self.reason or later.first_ordinal != self.last_ordinal + 1:
            return None
        return DropRange(
            reason=self.reason,
            first_seq=self.first_seq,
            last_seq=later.last_seq,
            first_ordinal=self.first_ordinal,
            last_ordinal=later.last_ordinal,
            credit_bytes=self.credit_bytes + later.credit_bytes,
        )


# What is encoded already waits as what it will leave as.
Entry = ResultGroup | DropRange | Outgoing


def drop_of(group: ResultGroup, reason: DropReason) -> DropRange:
    """What is told instead of a result that is not worth sending any more."""
    return DropRange(
        reason=reason,
        first_seq=group.seq,
        last_seq=group.seq,
        first_ordinal=group.ordinal,
        last_ordinal=group.ordinal,
        credit_bytes=group.credit_bytes,
    )
