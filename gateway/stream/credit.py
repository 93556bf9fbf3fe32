"""How much a client may have sent on one stream, counted since ``open`` as in QUIC."""

from __future__ import annotations

import math
from typing import NamedTuple

from gateway.stream.credit_pool import CreditShare
from gateway.stream.token_bucket import TokenBucket

# Windows. A client that keeps to its credit never comes near this: it is broken or hostile.
FAR_OVER_FACTOR = 2
SLACK_FRAMES = 2  # one arrives while another is answered
_RATE_GAIN = 0.1
_SHRINK_EVERY_S = 1.0


class Grant(NamedTuple):
    """Cumulative limits; they only grow."""

    max_frames: int
    max_bytes: int


class CreditWindow:
    """Frames and payload bytes in flight on one stream, against what the client was allowed.

    Limits are cumulative, so a late message never makes the two sides disagree. A frame counts
    from its arrival until its receipt is handed to the writer, whether it was accepted or refused;
    its bytes are those of its payload, in all pieces. One frame is always admitted when none is in
    flight, so a frame larger than the byte window still gets through.

    The window begins at its largest, ``max_frames``, and follows what is needed: frames in flight
    that keep the stream busy are its rate of answers x the time that each is in flight (Little's
    law), and ``SLACK_FRAMES``. More would only wait. It shrinks by one frame a second at most, and
    a client that has used up its credit makes it grow by one: so a way that takes long, which
    nothing here measures, gets the window that it needs. What was granted stays granted.

    With a ``share``, every frame that is granted has its place in the model's queue: the window
    begins small, grows as far as the share is fair, and gives back with its receipts.

    A refusal is a receipt too and gives its credit back, so frames beyond the credit are also
    counted by themselves: ``FAR_OVER_FACTOR`` windows of them a second are forgiven.
    """

    def __init__(self, max_frames: int, max_bytes: int, share: CreditShare | None = None) -> None:
        if max_frames < 1 or max_bytes < 1:
            raise ValueError(f"a window of {max_frames} frames, {max_bytes} bytes admits nothing")
        self._window = Grant(max_frames, max_bytes)  # at its largest
        self._share = share
        self._num_frames = max_frames  # of the window in use
        if share is not None:
            self._num_frames = min(max_frames, share.start)
        self._announced = Grant(self._num_frames, max_bytes)
        self._interval_s: float | None = None  # between two answers, smoothed
        self._in_flight_s = 0.0  # smoothed
        self._answered_at: float | None = None
        self._resized_at = float("-inf")
        self._received_frames = 0
        self._received_bytes = 0
        self._settled_frames = 0
        self._settled_bytes = 0
        forgiven = FAR_OVER_FACTOR * max_frames
        self._overruns = TokenBucket(forgiven, forgiven)
        self._is_ignored = False
        self._reserve()

    @property
    def grant(self) -> Grant:
        """What the client may have sent in all."""
        return Grant(
            max(self._announced.max_frames, self._num_frames + self._settled_frames),
            self._window.max_bytes + self._settled_bytes,
        )

    @property
    def window_frames(self) -> int:
        """How many frames the client should have in flight at most."""
        return self._num_frames

    @property
    def frames_in_flight(self) -> int:
        return self._received_frames - self._settled_frames

    @property
    def bytes_in_flight(self) -> int:
        return self._received_bytes - self._settled_bytes

    @property
    def is_far_exceeded(self) -> bool:
        """Whether the client ignores credit altogether."""
        limit = FAR_OVER_FACTOR * self._window.max_frames
        return self._is_ignored or self.frames_in_flight > limit

    def receive_bytes(self, num_bytes: int) -> None:
        """Payload has arrived: a whole frame's or one piece's."""
        self._received_bytes += num_bytes

    def receive_frame(self, now: float) -> bool:
        """The frame whose bytes have arrived is complete; returns whether credit covered it."""
        was_idle = self.frames_in_flight == 0
        self._received_frames += 1
        grant = self.grant
        is_covered = was_idle or (
            self._received_frames <= grant.max_frames and self._received_bytes <= grant.max_bytes
        )
        if self._received_frames >= self._announced.max_frames and self._num_frames < self._most:
            self._num_frames += 1
            self._reserve()
        if not is_covered and not self._overruns.try_take(now):
            self._is_ignored = True
        return is_covered

    def settle(self, num_frames: int, num_bytes: int) -> None:
        """Receipts for that many frames and bytes go out: the limits grow by as much.

        Raises:
            ValueError: more than is in flight; nothing has changed.
        """
        if num_frames > self.frames_in_flight or num_bytes > self.bytes_in_flight:
            raise ValueError(f"{num_frames} frames, {num_bytes} bytes are not in flight")
        self._settled_frames += num_frames
        self._settled_bytes += num_bytes
        self._num_frames -= min(num_frames, max(0, self._num_frames - self._most))
        self._reserve()

    def note_answer(self, in_flight_s: float, now: float) -> None:
        """A frame got its result ``now``, that long after it came: size the window by it."""
        before, self._answered_at = self._answered_at, now
        if before is None:
            self._in_flight_s, self._resized_at = in_flight_s, now
            return
        gap_s = now - before
        if self._interval_s is None:
            self._interval_s = gap_s
        self._interval_s += _RATE_GAIN * (gap_s - self._interval_s)
        self._in_flight_s += _RATE_GAIN * (in_flight_s - self._in_flight_s)
        if now < self._resized_at + _SHRINK_EVERY_S:
            return
        self._resized_at = now
        busy = self._in_flight_s / max(self._interval_s, 1e-3)
        needed = min(math.ceil(busy) + SLACK_FRAMES, self._most)
        self._num_frames = max(needed, self._num_frames - 1)
        self._reserve()

    def next_announcement(self) -> Grant | None:
        """The grant to tell the client now; None while more than half a window is left to it, and,
        with a ``share``, while it would be less than a quarter of a window more: such a client
        takes all that it is given, and would be told with every receipt.

        A client that has used its credit up has frames in flight, and their receipts find less
        than half left; the last of them at the latest brings a whole window more than was told:
        nobody waits for a grant that was withheld.
        """
        grant, told = self.grant, self._announced
        step = 1 if self._share is None else max(1, self._num_frames // 4)
        is_short_of_frames = told.max_frames - self._received_frames <= self._num_frames // 2
        is_short_of_bytes = told.max_bytes - self._received_bytes <= self._window.max_bytes // 2
        helps = (is_short_of_frames and grant.max_frames >= told.max_frames + step) or (
            is_short_of_bytes and grant.max_bytes > told.max_bytes
        )
        if not helps:
            return None
        self._announced = grant
        return grant

    @property
    def _most(self) -> int:
        """How far the window may grow."""
        return self._window.max_frames if self._share is None else self._share.fair

    def _reserve(self) -> None:
        """Keep as many places as frames that may come or are in flight."""
        if self._share is not None:
            self._share.resize(self.grant.max_frames - self._settled_frames)
