"""The rival in virtual time: a batcher that is told its size and knows the device exactly."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence

Seconds = Callable[[int], float]


def on_time_with_fixed_size(
    arrivals: Sequence[float], size: int, run_s: Seconds, *, deadline_s: float, window_s: float
) -> int:
    """How many items are answered within ``deadline_s`` of their arrival.

    One worker, one queue, oldest first. A batch goes when ``size`` items wait or the oldest has
    waited for ``window_s``; what could not be in time any more is left out, so a backlog does not
    make everything late.
    """
    coming, queue = deque(arrivals), deque[float]()
    now, on_time = 0.0, 0
    while coming or queue:
        while coming and coming[0] <= now:
            queue.append(coming.popleft())
        while queue and queue[0] + deadline_s < now + run_s(min(size, len(queue))):
            queue.popleft()
        if len(queue) < size:
            times = [queue[0] + window_s] if queue else []
            wakes_at = min([*times, *([coming[0]] if coming else [])], default=now)
            if wakes_at > now:
                now = wakes_at
                continue
        batch = [queue.popleft() for _ in range(min(size, len(queue)))]
        now += run_s(len(batch))
        on_time += sum(now <= arrival + deadline_s for arrival in batch)
    return on_time
