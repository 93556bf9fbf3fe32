"""The bounded way up to the host: one thread sends, everybody else puts messages in line."""

from __future__ import annotations

from collections.abc import Callable
from queue import Full, Queue

from engine.llm.messages import MAX_UP_BYTES, Up
from engine.workers.channel import encode_message

CAPACITY = 16  # messages; the socket's own buffer holds more


class Outgoing:
    """Holds at most ``CAPACITY`` messages. When the host does not read, :meth:`put` waits, and so,
    stage by stage, does the generation of tokens: nothing piles up."""

    def __init__(self, send: Callable[[bytes], None]) -> None:
        self._send = send
        self._encoded: Queue[bytes] = Queue(CAPACITY)

    def put(self, message: Up) -> None:
        """Put ``message`` in line, waiting for room. Any thread."""
        self._encoded.put(encode_message(message, MAX_UP_BYTES))

    def try_put(self, message: Up) -> None:
        """Put ``message`` in line if there is room; for what the next one makes obsolete."""
        try:
            self._encoded.put_nowait(encode_message(message, MAX_UP_BYTES))
        except Full:
            pass  # as announced

    def send_forever(self) -> None:
        """The sending thread; ends with ``OSError`` when the host is gone."""
        while True:
            self._send(self._encoded.get())
            self._encoded.task_done()

    def flush(self) -> None:
        """Wait until everything put so far was handed to the kernel."""
        self._encoded.join()
