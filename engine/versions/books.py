"""One model's counters over all its versions, those that are gone included."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import fields

from engine.batching.counters import Counters
from engine.batching.hops import Hops
from engine.versions.track import Track
from engine.workers.pool import PoolStatistics


def add_counters(total: Counters, more: Counters) -> None:
    """Add every count, by reason where there are reasons; ``hops`` are told by version."""
    for field in fields(Counters):
        value = getattr(more, field.name)
        if isinstance(value, Counter):
            getattr(total, field.name).update(value)
        elif not isinstance(value, Hops):
            setattr(total, field.name, getattr(total, field.name) + value)


class Books:
    """Counters that only grow, whatever versions come and go; hops as long as their version is in
    memory, so that there are as many as versions."""

    def __init__(self) -> None:
        self._gone = Counters()
        self._gone_restarts = 0
        self._gone_cpu_s = 0.0
        self._gone_replaced: Counter[str] = Counter()
        self._gone_hops: dict[str, Hops] = {}  # of versions of which another track is in memory

    def keep(self, track: Track, remaining: Iterable[Track]) -> None:
        """The track is closed: remember what it counted. ``remaining`` are those in memory."""
        statistics = track.pool.statistics()
        add_counters(self._gone, track.batcher.counters)
        self._gone_restarts += statistics.restarts
        self._gone_cpu_s += statistics.cpu_s
        self._gone_replaced.update(statistics.replaced)
        self._gone_hops.setdefault(track.version, Hops()).add(track.batcher.counters.hops)
        versions = {each.version for each in remaining}
        self._gone_hops = {each: h for each, h in self._gone_hops.items() if each in versions}

    def counters(self, tracks: Iterable[Track]) -> Counters:
        total = Counters()
        add_counters(total, self._gone)
        for track in tracks:
            add_counters(total, track.batcher.counters)
        return total

    def hops(self, tracks: Iterable[Track]) -> dict[str, Hops]:
        """By version: a version that was loaded again counts on, so that no sum falls."""
        found: dict[str, Hops] = {}
        for track in tracks:
            found.setdefault(track.version, Hops()).add(track.batcher.counters.hops)
        for version, gone in self._gone_hops.items():
            if version in found:
                found[version].add(gone)
        return found

    def restarts(self, pools: Iterable[PoolStatistics]) -> int:
        return self._gone_restarts + sum(pool.restarts for pool in pools)

    def cpu_s(self, pools: Iterable[PoolStatistics]) -> float:
        return self._gone_cpu_s + sum(pool.cpu_s for pool in pools)

    def replaced(self, pools: Iterable[PoolStatistics]) -> dict[str, int]:
        total = Counter(self._gone_replaced)
        for pool in pools:
            total.update(pool.replaced)
        return dict(total)
