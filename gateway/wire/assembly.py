"""Puts payloads that travelled in pieces together again."""

from __future__ import annotations

from dataclasses import dataclass

from msgspec.structs import replace

from gateway.wire.codec import BinaryMessage, FrameFlags, FrameHeader, ProtocolError


class FrameTooLarge(Exception):
    """The payload exceeds the limit; raised once per frame, later pieces are swallowed."""

    def __init__(self, header: FrameHeader, limit_bytes: int) -> None:
        super().__init__(f"frame exceeds {limit_bytes} bytes")
        self.header = header
        self.detail = str(self)


@dataclass(slots=True)
class _Partial:
    """A payload whose last piece has not come yet; ``buffer`` is None once it is given up."""

    header: FrameHeader
    meta: memoryview
    buffer: bytearray | None
    deadline: float


class FrameAssembler:
    """Assembles the pieces of every stream of one connection.

    At most one payload per stream and ``max_unfinished`` in all are under way; more is a protocol
    error. One payload has at most ``max_frame_bytes``, the unfinished ones together at most
    ``max_total_bytes`` (default: four full frames); beyond either the frame is refused.
    ``timeout_s`` after its first piece an unfinished payload is handed out by ``expire``, and what
    still arrives of it is swallowed. Whole messages pass without a copy.
    """

    def __init__(
        self,
        *,
        max_frame_bytes: int,
        timeout_s: float,
        max_total_bytes: int | None = None,
        max_unfinished: int = 64,
    ) -> None:
        self._max_frame_bytes = max_frame_bytes
        self._max_total_bytes = max_total_bytes or 4 * max_frame_bytes
        self._max_unfinished = max_unfinished
        self._timeout_s = timeout_s
        self._partials: dict[int, _Partial] = {}
        self._size_bytes = 0

    @property
    def size_bytes(self) -> int:
        """Bytes held for unfinished payloads."""
        return self._size_bytes

    def push(self, message: BinaryMessage, now: float) -> BinaryMessage | None:
        """The complete message, or None while pieces are missing.

        Raises:
            FrameTooLarge: a limit is exceeded; the frame is refused, the connection can go on.
            ProtocolError: the piece does not continue what its stream has begun.
        """
        header = message.header
        partial = self._partials.get(header.stream)
        if partial is None:
            if not header.has_more:
                return self._whole(message)
            partial = self._begin(message, now)
        elif not _continues(partial.header, message):
            raise ProtocolError(f"stream {header.stream}: a frame in pieces was not finished")
        if header.has_more and not message.payload:
            raise ProtocolError(f"stream {header.stream}: an empty piece that says MORE")
        return self._extend(partial, message)

    def expire(self, now: float) -> list[FrameHeader]:
        """Give up payloads whose time is over and name them."""
        overdue = [
            partial
            for partial in self._partials.values()
            if partial.buffer is not None and partial.deadline <= now
        ]
        for partial in overdue:
            self._give_up(partial)
        return [partial.header for partial in overdue]

    def forget(self, stream: int) -> None:
        """Drop what is held for a stream that has ended; unknown streams are ignored."""
        partial = self._partials.pop(stream, None)
        if partial is not None:
            self._give_up(partial)

    def _whole(self, message: BinaryMessage) -> BinaryMessage:
        if len(message.payload) > self._max_frame_bytes:
            raise FrameTooLarge(message.header, self._max_frame_bytes)
        return message

    def _begin(self, message: BinaryMessage, now: float) -> _Partial:
        header = message.header
        if len(self._partials) >= self._max_unfinished:
            raise ProtocolError(f"more than {self._max_unfinished} frames in pieces at once")
        # The meta is copied: a view would keep the whole first message alive.
        meta = memoryview(bytes(message.meta))
        partial = _Partial(header, meta, bytearray(), now + self._timeout_s)
        self._partials[header.stream] = partial
        return partial

    def _extend(self, partial: _Partial, message: BinaryMessage) -> BinaryMessage | None:
        header, buffer = partial.header, partial.buffer
        if not message.header.has_more:
            del self._partials[header.stream]
        if buffer is None:
            return None
        added = len(message.payload)
        if (
            len(buffer) + added > self._max_frame_bytes
            or self._size_bytes + added > self._max_total_bytes
        ):
            self._give_up(partial)
            raise FrameTooLarge(header, self._max_frame_bytes)
        buffer += message.payload
        self._size_bytes += added
        if message.header.has_more:
            return None
        self._size_bytes -= len(buffer)
        whole = replace(header, flags=header.flags & ~FrameFlags.MORE)
        return BinaryMessage(whole, partial.meta, memoryview(buffer).toreadonly())

    def _give_up(self, partial: _Partial) -> None:
        if partial.buffer is not None:
            self._size_bytes -= len(partial.buffer)
            partial.buffer = None


def _continues(first: FrameHeader, message: BinaryMessage) -> bool:
    header = message.header
    return (
        header.type is first.type
        and header.seq == first.seq
        and header.t_us == first.t_us
        and header.meta_len == 0
    )
