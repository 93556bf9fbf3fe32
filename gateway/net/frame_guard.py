"""Looks at the headers of WebSocket frames before aiohttp assembles messages from them.

aiohttp takes frames without a mask, which RFC 6455 (5.1) forbids, and works through all the frames
of one read without a pause: fragments without content cost a sender next to nothing, never become
a message that could be counted, and tens of millions of them a second hold the loop for good.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

from gateway.errors import CloseCode, ConnectionFault, ProblemKind
from gateway.stream.token_bucket import TokenBucket

BURST_S = 1.0  # how many seconds' worth of frames may come at once
_MASKED, _LENGTH = 0x80, 0x7F
_MASK_BYTES = 4
_LENGTH_BYTES = {126: 2, 127: 8}  # that follow the first two


class FrameParser(Protocol):
    """What aiohttp feeds with the bytes of a WebSocket."""

    def feed_data(self, data: bytes) -> tuple[bool, bytes]: ...

    def feed_eof(self) -> None: ...


class FrameGuard:
    """Stands before a parser, counts frames and insists on masks.

    At the first ``fault`` the parser is told that there is no more, and what still comes is thrown
    away: the read with the offending frame, whole, and all after it. Payload is stepped over, not
    looked at; lengths are the parser's to refuse. Belongs to the loop's thread.
    """

    def __init__(
        self, parser: FrameParser, *, max_frames_per_s: float, now: Callable[[], float]
    ) -> None:
        self.fault: ConnectionFault | None = None
        self._parser = parser
        self._rate = TokenBucket(max_frames_per_s, max(1.0, max_frames_per_s * BURST_S))
        self._now = now
        self._head = b""  # of a frame whose header is not complete
        self._payload_left = 0

    def feed_data(self, data: bytes) -> tuple[bool, bytes]:
        if self.fault is None:
            self.fault = self._check(data)
            if self.fault is None:
                return self._parser.feed_data(data)
            self._parser.feed_eof()
        return False, b""

    def feed_eof(self) -> None:
        self._parser.feed_eof()

    def _check(self, data: bytes) -> ConnectionFault | None:
        """Step from header to header; the fault of the first frame that has one."""
        if self._head:
            data = self._head + data
        now, position, end = self._now(), self._payload_left, len(data)
        while end - position >= 2:
            second = data[position + 1]
            length = second & _LENGTH
            start = position + 2 + _LENGTH_BYTES.get(length, 0)
            if end < start:
                break
            if not second & _MASKED:
                detail = "frames of a client are masked"
                return _fault(CloseCode.PROTOCOL_ERROR, ProblemKind.INVALID_MESSAGE, detail)
            if not self._rate.try_take(now):
                detail = "too many WebSocket frames per second"
                return _fault(CloseCode.QUOTA, ProblemKind.LIMIT_EXCEEDED, detail)
            if start > position + 2:
                length = int.from_bytes(data[position + 2 : start], "big")
            position = start + _MASK_BYTES + length
        self._head = data[position:]
        self._payload_left = max(0, position - end)
        return None


def _fault(code: CloseCode, kind: ProblemKind, detail: str) -> ConnectionFault:
    return ConnectionFault(code, kind, detail)
