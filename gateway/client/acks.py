"""What the client has to acknowledge on one stream."""

from __future__ import annotations

from gateway.wire.messages import Ack

ACK_MESSAGES = 8


class AckTracker:
    """Collects results into one ``ack``: every ``ACK_MESSAGES`` results, or whenever asked.

    ``seq`` is the newest result received, ``rendered_seq`` the newest that the program took.
    """

    def __init__(self) -> None:
        self._result_seq = -1
        self._rendered_seq = -1
        self._num_waiting = 0

    @property
    def is_due(self) -> bool:
        return self._num_waiting >= ACK_MESSAGES

    def received(self, seq: int) -> None:
        self._result_seq = max(self._result_seq, seq)
        self._num_waiting += 1

    def rendered(self, seq: int) -> None:
        self._rendered_seq = seq

    def reset(self) -> None:
        """A new connection: what the old one brought is not acknowledged on it."""
        self._num_waiting = 0

    def take(self, stream: int) -> Ack | None:
        """The message that is worth sending now, if any."""
        if self._num_waiting == 0:
            return None
        self._num_waiting = 0
        if self._rendered_seq < 0:
            return Ack(stream=stream, seq=self._result_seq)
        return Ack(stream=stream, seq=self._result_seq, rendered_seq=self._rendered_seq)
