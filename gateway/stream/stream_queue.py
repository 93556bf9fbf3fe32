"""One stream's share of an outbox: its messages in order, one answer at a time."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable

from engine.types import DropReason
from gateway.stream.byte_budget import ByteMeter
from gateway.stream.entries import (
    DropRange,
    Entry,
    Keep,
    Outgoing,
    OutgoingKind,
    ResultGroup,
    drop_of,
)
from gateway.wire.codec import encode
from gateway.wire.messages import Drop

Settle = Callable[[int, DropReason | None], None]  # (seq, why it was given up; None: it leaves)

# A result that has waited longer than this waits for its reader: a burst of healthy results passes
# in less. Then only the newest is worth the reader's time.
LAG_S = 0.01


class StreamQueue:
    """First in, first out; a group once begun is finished before anything else leaves.

    ``settle(seq, reason)`` is called exactly once for each result, when its fate is decided: it
    begins to leave (None), or it is told as dropped, because its deadline has passed or room was
    needed (``late``), or because the reader lags and a newer one waits (``superseded``). ``keep``
    says which of these may happen. ``settle`` may ``put`` into this very queue.
    """

    # Every token passes here, one stream after the other: what is close together stays in cache.
    __slots__ = (
        "_begun",
        "_entries",
        "_keep",
        "_meter",
        "_num_results",
        "_pieces",
        "_settle",
        "droppable_bytes",
        "finish",
        "is_scheduled",
        "size_bytes",
        "stream",
        "weight",
    )

    def __init__(
        self, stream: int, settle: Settle, meter: ByteMeter, *, weight: float, keep: Keep
    ) -> None:
        self.stream = stream
        self.weight = weight
        self.size_bytes = 0  # not yet taken; also counted by ``meter``
        self.droppable_bytes = 0  # of results that may still be given up
        # Its turn among the others, which is the outbox's business.
        self.finish = 0.0  # virtual time at which what it has sent is paid off
        self.is_scheduled = False
        self._settle = settle
        self._meter = meter
        self._keep = keep
        self._entries: deque[Entry] = deque()
        self._num_results = 0  # among the entries
        self._begun: ResultGroup | None = None
        self._pieces: deque[bytes] = deque()  # of ``_begun``

    def __len__(self) -> int:
        """Answers and other messages that have not left completely."""
        return len(self._entries) + (self._begun is not None)

    def put(self, entry: Entry) -> None:
        """Append, or extend the last entry if both are drops that may be told as one."""
        if isinstance(entry, Outgoing):
            self._entries.append(entry)
            num_bytes = len(entry.data)
            self.size_bytes += num_bytes
            self._meter.add(num_bytes)
            return
        if isinstance(entry, DropRange) and self._entries:
            last = self._entries[-1]
            merged = last.merge(entry) if isinstance(last, DropRange) else None
            if merged is not None:
                self._entries[-1] = merged
                return
        self._entries.append(entry)
        self._account(entry, 1)

    def take(self, now: float) -> Outgoing:
        """The next message; the queue must not be empty."""
        if self._begun is not None:
            return self._take_part(self._begun)
        entry = self._entries[0]
        if isinstance(entry, Outgoing):
            self._entries.popleft()
            num_bytes = len(entry.data)
            self.size_bytes -= num_bytes
            self._meter.add(-num_bytes)
            return entry
        self._pop()
        if isinstance(entry, DropRange):
            return self._take_drops(entry, now)
        reason = self._reason_to_drop(entry, now, self._num_results)
        if reason is not None:
            self._settle(entry.seq, reason)
            return self._take_drops(drop_of(entry, reason), now)
        self._begun = entry
        self._pieces.extend(entry.pieces)
        self._resize(entry.size_bytes)
        outgoing = self._take_part(entry)
        self._settle(entry.seq, None)
        return outgoing

    def next_newest_bytes(self, now: float) -> int:
        """The size of the result that ``take`` would begin, if a newer one could still replace it;
        0 if it would do anything else."""
        if self._keep is not Keep.NEWEST or self._begun is not None or not self._num_results:
            return 0
        entry = self._entries[0]
        if not isinstance(entry, ResultGroup):
            return 0
        reason = self._reason_to_drop(entry, now, self._num_results - 1)
        return entry.size_bytes if reason is None else 0

    def give_up_oldest(self) -> None:
        """Tell the oldest result that waits as dropped; there must be one (``droppable_bytes``)."""
        for index, entry in enumerate(self._entries):
            if isinstance(entry, ResultGroup):
                self._account(entry, -1)
                self._replace(index, drop_of(entry, DropReason.LATE))
                self._settle(entry.seq, DropReason.LATE)
                return

    def check_integrity(self) -> None:
        """Assert the sums; tests call it after every step."""
        results = [entry for entry in self._entries if isinstance(entry, ResultGroup)]
        assert self._num_results == len(results)
        is_kept = self._keep is Keep.ALL
        assert self.droppable_bytes == (0 if is_kept else sum(r.size_bytes for r in results))
        begun_bytes = 0 if self._begun is None else len(self._begun.text)
        begun_bytes += sum(map(len, self._pieces))
        assert self.size_bytes == sum(e.size_bytes for e in self._entries) + begun_bytes

    def _take_part(self, group: ResultGroup) -> Outgoing:
        if self._pieces:
            piece = self._pieces.popleft()
            self._resize(-len(piece))
            return Outgoing(
                kind=OutgoingKind.ATTACHMENT,
                data=piece,
                is_text=False,
                stream=self.stream,
                seq=group.seq,
                deadline=group.deadline,
            )
        self._begun = None
        self._resize(-len(group.text))
        return group.last_message(self.stream)

    def _take_drops(self, drops: DropRange, now: float) -> Outgoing:
        """``drops``, together with what follows and may be told in the same breath."""
        while self._entries:
            follower = self._entries[0]
            if isinstance(follower, Outgoing):
                break
            reason = None
            if isinstance(follower, ResultGroup):
                reason = self._reason_to_drop(follower, now, self._num_results - 1)
                if reason is None:
                    break
                merged = drops.merge(drop_of(follower, reason))
            else:
                merged = drops.merge(follower)
            if merged is None:
                break
            drops = merged
            self._pop()
            if reason is not None:
                self._settle(drops.last_seq, reason)
        return self._outgoing_drop(drops)

    def _reason_to_drop(self, group: ResultGroup, now: float, num_newer: int) -> DropReason | None:
        """Why the result is not worth sending any more; None: it is."""
        if self._keep is Keep.ALL:
            return None
        if group.deadline is not None and now > group.deadline:
            return DropReason.LATE
        if self._keep is Keep.NEWEST and num_newer > 0 and now - group.ready_at > LAG_S:
            return DropReason.SUPERSEDED
        return None

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
        self._resize(size_bytes)
        if isinstance(entry, ResultGroup):
            self._num_results += sign
            if self._keep is not Keep.ALL:
                self.droppable_bytes += size_bytes

    def _resize(self, num_bytes: int) -> None:
        self.size_bytes += num_bytes
        self._meter.add(num_bytes)

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
