"""Text for programs: at once, in fewer messages when it comes faster than messages should."""

from __future__ import annotations

from gateway.stream.leaky_bucket import LeakyBucket
from gateway.stream.release import Departure, Reserve

UNPACED_TOKENS_PER_S = 1e6  # of a reader that takes tokens as fast as they come


class Unpaced:
    """The ``Decider`` of ``pace: off``.

    One piece of text is one event as long as the ``bucket`` allows; what comes faster leaves
    together with the next event. So the text itself is never slower than its source by more than
    one interval of the bucket, and the last of it waits for nothing.
    """

    def __init__(self, bucket: LeakyBucket) -> None:
        self.reserve = Reserve()
        self.tokens_per_s = UNPACED_TOKENS_PER_S
        self._bucket = bucket
        self._is_finished = False

    def push(self, text: str, now: float) -> None:
        self.reserve.push(text, now)

    def finish(self, now: float) -> None:
        self._is_finished = True

    def next_send_time(self, now: float) -> float | None:
        if not self.reserve:
            return None
        return now if self._is_finished else max(self.reserve.oldest_at, self._bucket.next_time())

    def take(self, now: float) -> Departure:
        self._bucket.add(now)
        lag_s, num_texts = now - self.reserve.oldest_at, len(self.reserve)
        text = self.reserve.pop_some(num_texts)
        return Departure(text=text, num_texts=num_texts, pace_s=None, lag_s=lag_s)
