"""What the client has to acknowledge on one stream."""

from __future__ import annotations

from gateway.wire.messages import Ack

ACK_MESSAGES = 8
ACK_INTERVAL_S = 1.0  # of a slower stream: each message of ours wakes the server


class AckTracker:
    """Collects results into one ``ack``: of ``ACK_MESSAGES``, or of ``ACK_INTERVAL_S``.

    ``seq`` is the newest result received, ``rendered_seq`` the newest that the program took.
    """

    def __init__(self) -> None:
        self._result_seq = -1
        self._rendered_seq = -1
        self._num_waiting = 0
        self._oldest_at = 0.0  # of those that wait

    def is_due(self, now: float) -> bool:
        if self._num_waiting == 0:
            return False
        return self._num_waiting >= ACK_MESSAGES or now - self._oldest_at >= ACK_INTERVAL_S

    def received(self, seq: int, now: float) -> None:
        if self._num_waiting == 0:
            self._oldest_at = now
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
