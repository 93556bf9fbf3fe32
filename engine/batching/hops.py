"""Where the items of one model spent their time, and how many ran together. Pure."""

from __future__ import annotations

from engine.histogram import BATCH_SIZE_BOUNDS, HOP_BOUNDS_S, Histogram
from engine.types import Timing

HOPS = ("queue", "batch", "prepare", "run", "interpret")  # the fields of ``Timing``


class Hops:
    """Counts results and batches; only grows."""

    def __init__(self) -> None:
        self.times_s = {hop: Histogram(HOP_BOUNDS_S) for hop in HOPS}
        self.batch_sizes = Histogram(BATCH_SIZE_BOUNDS)

    def observe(self, timing: Timing) -> None:
        """An item got its result."""
        queue, batch, prepare, run, interpret = self.times_s.values()  # in the order of ``HOPS``
        queue.observe(timing.queue / 1e6)
        batch.observe(timing.batch / 1e6)
        prepare.observe(timing.prepare / 1e6)
        run.observe(timing.run / 1e6)
        interpret.observe(timing.interpret / 1e6)

    def observe_batch(self, size: int) -> None:
        """So many items ran together."""
        self.batch_sizes.observe(size)

    def add(self, other: Hops) -> None:
        """Count what ``other`` has."""
        for hop, times_s in self.times_s.items():
            times_s.add(other.times_s[hop])
        self.batch_sizes.add(other.batch_sizes)
