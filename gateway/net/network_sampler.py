"""Looks at the network of every connection about once a second, a few connections at a time."""

from __future__ import annotations

import logging
from collections.abc import Iterable
from itertools import chain
from math import ceil
from typing import Protocol

from engine.ticks import next_tick
from gateway.session.clock import Clock, Timer

TICK_S = 0.125
ROUND_S = 1.0
# Asking the kernel takes a few microseconds: a tick stays well below a millisecond. Beyond 1,000
# connections a round takes longer; a few are not worth more than one wake-up of the process.
MIN_PER_TICK, MAX_PER_TICK = 10, 100


logger = logging.getLogger(__name__)


class Sampled(Protocol):
    """A connection, as the sampler sees it."""

    def sample_network(self) -> None: ...


class NetworkSampler:
    """One timer for all ``groups`` of connections. ``start`` once; ``stop`` is idempotent."""

    def __init__(self, clock: Clock, *groups: Iterable[Sampled]) -> None:
        self._clock = clock
        self._groups = groups
        self._timer: Timer | None = None
        self._waiting: list[Sampled] = []  # for their turn in this round
        self._num_per_tick = 0
        self._next_round_at = 0.0

    def start(self) -> None:
        self._timer = self._clock.call_at(next_tick(self._clock.now(), TICK_S), self._tick)

    def stop(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        self._waiting.clear()

    def _tick(self) -> None:
        now = self._clock.now()
        if not self._waiting:
            self._next_round_at = next_tick(now, ROUND_S)
            self._waiting = list(chain(*self._groups))
            even_share = ceil(len(self._waiting) * TICK_S / ROUND_S)
            self._num_per_tick = min(max(MIN_PER_TICK, even_share), MAX_PER_TICK)
        taken = self._waiting[: self._num_per_tick]
        del self._waiting[: self._num_per_tick]
        next_at = next_tick(now, TICK_S) if self._waiting else self._next_round_at
        self._timer = self._clock.call_at(next_at, self._tick)
        for connection in taken:
            try:
                connection.sample_network()
            except Exception:  # slow readers among the others are found by this
                logger.exception("a connection could not be looked at")
