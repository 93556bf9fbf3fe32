"""A served model's statistics, put together from its versions."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from engine.base import ModelStatistics, VersionStatistics
from engine.config import ModelConfig
from engine.manifest import Manifest
from engine.versions.books import Books
from engine.versions.editions import Edition, Editions
from engine.versions.reload import UNLOADED, Reloader
from engine.versions.track import Track
from engine.workers.pool import PoolStatistics


def describe(
    name: str,
    *,
    manifest: Manifest,
    config: ModelConfig,
    editions: Editions,
    current: Track | None,
    books: Books,
    reloader: Reloader,
    num_lanes: int,
    now: float,
) -> ModelStatistics:
    """Counters over all versions, hops by version; readiness, workers and version are those of
    ``current``."""
    tracks = [track for edition in editions.in_memory() for track in edition.tracks]
    counters, hops = books.counters(tracks), books.hops(tracks)
    pools = {track: track.pool.statistics() for track in tracks}
    is_unloaded = current is None and reloader.log.last == UNLOADED
    idle = _without_workers(config, UNLOADED if is_unloaded else "not started")
    pool = idle if current is None else pools[current]
    reason = pool.reason or (current.batcher.unavailable if current is not None else None) or ""
    return ModelStatistics(
        model=name,
        version=manifest.version if current is None else current.version,
        ready=pool.ready and not reason,
        reason=reason,
        workers_alive=pool.workers_alive,
        workers_wanted=pool.workers_wanted,
        worker_restarts=books.restarts(pools.values()),
        worker_rss_bytes=tuple(rss for each in pools.values() for rss in each.rss_bytes),
        providers=pool.providers,
        lanes=num_lanes,
        queued=sum(track.batcher.num_queued for track in tracks),
        in_flight=sum(track.batcher.num_in_flight for track in tracks),
        accepted=counters.accepted,
        results=counters.results,
        dropped=dict(counters.dropped),
        failed=counters.failed,
        cancelled=counters.cancelled,
        batches=counters.batches,
        retried=counters.retried,
        run_s=counters.run_s,
        hops={version: each.times_s for version, each in hops.items()},
        batch_sizes={version: each.batch_sizes for version, each in hops.items()},
        queue_age_s=max((track.batcher.queue_age_s(now) for track in tracks), default=0.0),
        workers_cpu_s=books.cpu_s(pools.values()),
        predicted_run_s=0.0 if current is None else current.batcher.predicted_run_s,
        worker_memory_share=max((each.memory_share for each in pools.values()), default=0.0),
        workers_replaced=books.replaced(pools.values()),
        versions=tuple(_versions(editions, reloader, pools)),
        reloads=dict(reloader.log.count),
        last_reload=reloader.log.last,
        unloaded=is_unloaded,
    )


def _versions(
    editions: Editions, reloader: Reloader, pools: Mapping[Track, PoolStatistics]
) -> Iterator[VersionStatistics]:
    for edition in editions.in_memory():
        state = _state(edition, editions, reloader)
        for track in edition.tracks:
            counters = track.batcher.counters
            yield VersionStatistics(
                version=track.version,
                state=state,
                reason=pools[track].reason or track.batcher.unavailable or "",
                workers_alive=pools[track].workers_alive,
                results=counters.results,
                failed=counters.failed,
            )
    for label, reason in reloader.log.rejected.items():
        yield VersionStatistics(version=label, state="rejected", reason=reason)


def _state(edition: Edition, editions: Editions, reloader: Reloader) -> str:
    if edition is editions.active:
        return "trial" if reloader.is_on_trial else "active"
    if edition is editions.reserve:
        return "reserve"
    return "served" if edition in editions.served.values() else "draining"


def _without_workers(config: ModelConfig, reason: str) -> PoolStatistics:
    return PoolStatistics(
        ready=False,
        reason=reason,
        workers_alive=0,
        workers_wanted=config.first_workers,
        restarts=0,
    )
