"""One stream's share of an outbox: its messages in order, one answer at a time."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable

from gateway.stream.entries import (
    DropRange,
    Entry,
    Outgoing,
    OutgoingKind,
    ResultGroup,
    StreamText,
    drop_of,
)
from gateway.wire.codec import encode
from gateway.wire.messages import Drop

Settle = Callable[[int, bool], None]  # (seq, delivered)


class StreamQueue:
    """First in, first out; a group once begun is finished before anything else leaves.

    ``settle(seq, delivered)`` is called exactly once for each result, when its fate is decided: it
    begins to leave, or it is told as ``drop(late)`` because its deadline has passed or room was
    needed. ``settle`` may ``put`` into this very queue. ``keeps_late``: no result is given up.
    """

    def __init__(self, stream: int, settle: Settle, *, weight: float, keeps_late: bool) -> None:
        self.stream = stream
        self.weight = weight
        self.size_bytes = 0  # not yet taken
        self.droppable_bytes = 0  # of results that may still be given up
        self._settle = settle
        self._keeps_late = keeps_late
        self._entries: deque[Entry] = deque()
        self._begun: ResultGroup | None = None
        self._pieces: deque[bytes] = deque()  # of ``_begun``

    def __len__(self) -> int:
        """Answers and other messages that have not left completely."""
        return len(self._entries) + (self._begun is not None)

    def put(self, entry: Entry) -> None:
        """Append, or extend the last entry if both are drops that may be told as one."""
        last = self._entries[-1] if self._entries else None
        if isinstance(entry, DropRange) and isinstance(last, DropRange):
            merged = last.merge(entry)
            if merged is not None:
                self._entries[-1] = merged
                return
        self._entries.append(entry)
        self._account(entry, 1)

    def take(self, now: float) -> Outgoing:
        """The next message; the queue must not be empty."""
        if self._begun is not None:
            return self._take_part(self._begun)
        entry = self._pop()
        if isinstance(entry, StreamText):
            return self._outgoing_text(entry)
        if isinstance(entry, ResultGroup) and not self._is_late(entry, now):
            self._begun = entry
            self._pieces.extend(entry.pieces)
            self.size_bytes += entry.size_bytes
            outgoing = self._take_part(entry)
            self._settle(entry.seq, True)
            return outgoing
        return self._take_drops(entry, now)

    def give_up_oldest(self) -> None:
        """Tell the oldest result that waits as dropped; there must be one (``droppable_bytes``)."""
        for index, entry in enumerate(self._entries):
            if isinstance(entry, ResultGroup):
                self._account(entry, -1)
                self._replace(index, drop_of(entry))
                self._settle(entry.seq, False)
                return

    def check_integrity(self) -> None:
        """Assert the sums; tests call it after every step."""
        results = sum(e.size_bytes for e in self._entries if isinstance(e, ResultGroup))
        assert self.droppable_bytes == (0 if self._keeps_late else results)
        begun_bytes = 0 if self._begun is None else len(self._begun.text)
        begun_bytes += sum(map(len, self._pieces))
        assert self.size_bytes == sum(e.size_bytes for e in self._entries) + begun_bytes

    def _take_part(self, group: ResultGroup) -> Outgoing:
        if self._pieces:
            piece = self._pieces.popleft()
            self.size_bytes -= len(piece)
            return Outgoing(
                kind=OutgoingKind.ATTACHMENT,
                data=piece,
                is_text=False,
                stream=self.stream,
                seq=group.seq,
                deadline=group.deadline,
            )
        self._begun = None
        self.size_bytes -= len(group.text)
        return Outgoing(
            kind=OutgoingKind.RESULT,
            data=group.text,
            stream=self.stream,
            seq=group.seq,
            deadline=group.deadline,
            num_frames=1,
            credit_bytes=group.credit_bytes,
        )

    def _take_drops(self, entry: ResultGroup | DropRange, now: float) -> Outgoing:
        """The entry as a drop, together with what follows and may be told in the same breath."""
        drops = self._as_drop(entry)
        while self._entries:
            follower = self._entries[0]
            if isinstance(follower, StreamText):
                break
            if isinstance(follower, ResultGroup) and not self._is_late(follower, now):
                break
            later = follower if isinstance(follower, DropRange) else drop_of(follower)
            merged = drops.merge(later)
            if merged is None:
                break
            self._pop()
            if isinstance(follower, ResultGroup):
                self._settle(follower.seq, False)
            drops = merged
        return self._outgoing_drop(drops)

    def _as_drop(self, entry: ResultGroup | DropRange) -> DropRange:
        if isinstance(entry, DropRange):
            return entry
        self._settle(entry.seq, False)
        return drop_of(entry)

    def _is_late(self, group: ResultGroup, now: float) -> bool:
        return not self._keeps_late and group.deadline is not None and now > group.deadline

    def _replace(self, index: int, drop: DropRange) -> None:
        before = self._entries[index - 1] if index > 0 else None
        merged = before.merge(drop) if isinstance(before, DropRange) else None
        if merged is not None:
            self._entries[index - 1] = merged
            del self._entries[index]
        else:
            self._entries[index] = drop
            self._account(drop, 1)

    def _pop(self) -> Entry:
        entry = self._entries.popleft()
        self._account(entry, -1)
        return entry

    def _account(self, entry: Entry, sign: int) -> None:
        size_bytes = sign * entry.size_bytes
        self.size_bytes += size_bytes
        if isinstance(entry, ResultGroup) and not self._keeps_late:
            self.droppable_bytes += size_bytes

    def _outgoing_text(self, entry: StreamText) -> Outgoing:
        answers_frame = entry.seq is not None and entry.kind is OutgoingKind.STREAM
        return Outgoing(
            kind=entry.kind,
            data=entry.text,
            stream=self.stream,
            seq=entry.seq,
            num_frames=1 if answers_frame else 0,
            credit_bytes=entry.credit_bytes,
        )

    def _outgoing_drop(self, drops: DropRange) -> Outgoing:
        message = Drop(
            stream=self.stream,
            reason=drops.reason.value,
            first=drops.first_seq,
            last=drops.last_seq,
            count=drops.num_frames,
        )
        return Outgoing(
            kind=OutgoingKind.DROP,
            data=encode(message),
            stream=self.stream,
            seq=drops.last_seq,
            num_frames=drops.num_frames,
            credit_bytes=drops.credit_bytes,
        )
