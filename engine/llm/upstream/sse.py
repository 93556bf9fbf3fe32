"""Server-sent events, read incrementally. Pure.

https://html.spec.whatwg.org/multipage/server-sent-events.html#event-stream-interpretation
"""

from __future__ import annotations

import re

MAX_EVENT_BYTES = 1024 * 1024
_LINE_END = re.compile(rb"\r\n|\r|\n")
_BYTE_ORDER_MARK = b"\xef\xbb\xbf"


class EventTooLarge(Exception):
    """An event exceeds ``MAX_EVENT_BYTES``."""


class SseParser:
    """Bytes in, the data of each complete event out, the same for every way to cut the bytes.

    Names, ids and comments are skipped: completions do not use them. What follows the last blank
    line is no event.
    """

    def __init__(self) -> None:
        self._line: list[bytes] = []  # the pieces of an unfinished line
        self._data: list[bytes] = []
        self._size_bytes = 0  # of both
        self._is_after_cr = False  # a line feed would belong to the line before
        self._is_first = True

    def feed(self, data: bytes) -> list[str]:
        """Raises ``EventTooLarge``; the parser is of no use afterwards."""
        if self._is_after_cr and data.startswith(b"\n"):
            data = data[1:]
            self._is_after_cr = False
        if not data:
            return []
        self._is_after_cr = data.endswith(b"\r")
        *ends, rest = _LINE_END.split(data)
        events = []
        for end in ends:
            event = self._take_line(b"".join([*self._line, end]))
            self._line.clear()
            if event is not None:
                events.append(event)
        if rest:
            self._line.append(rest)
            self._grow(len(rest))
        return events

    def _take_line(self, line: bytes) -> str | None:
        if self._is_first:
            line = line.removeprefix(_BYTE_ORDER_MARK)
            self._is_first = False
        if not line:
            return self._dispatch()
        name, _, value = line.partition(b":")
        if name == b"data":
            self._data.append(value.removeprefix(b" "))
        self._size_bytes = 0
        self._grow(sum(map(len, self._data)))
        return None

    def _dispatch(self) -> str | None:
        if not self._data:
            return None
        event = b"\n".join(self._data).decode(errors="replace")
        self._data.clear()
        self._size_bytes = 0
        return event

    def _grow(self, num_bytes: int) -> None:
        self._size_bytes += num_bytes
        if self._size_bytes > MAX_EVENT_BYTES:
            raise EventTooLarge(f"an event of more than {MAX_EVENT_BYTES} bytes")
