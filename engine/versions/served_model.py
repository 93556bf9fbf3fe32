"""One model being served: its lanes, the version that answers them, and who looks after both."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterable, Mapping
from typing import Any

from engine.base import ModelStatistics
from engine.config import ModelConfig
from engine.errors import EngineError, Overloaded, StartupError, Unavailable, UnknownModel
from engine.manifest import Manifest
from engine.models.repository import LATEST, FileWatch, Repository, Variants
from engine.ticks import next_tick
from engine.types import Emit, LaneSpec
from engine.versions.books import Books
from engine.versions.description import describe
from engine.versions.editions import Edition, Editions, edition_label
from engine.versions.lane import RoutedLane
from engine.versions.reload import Reloader
from engine.versions.track import PoolFactory, Track

logger = logging.getLogger(__name__)

TICK_S = 0.25


class ServedModel:
    """Runs on the event loop's thread. Implements :class:`engine.versions.lane.Router`.

    Without a ``repository`` it serves ``manifest`` alone and cannot be reloaded.
    ``service_level`` is 0 without pressure; each step up takes the next variant.
    """

    def __init__(
        self,
        name: str,
        manifest: Manifest,
        config: ModelConfig,
        pool_factory: PoolFactory,
        *,
        repository: Repository | None = None,
        service_level: Callable[[], int] = lambda: 0,
    ) -> None:
        self.config = config
        self._name = name
        self._manifest = manifest
        self._repository = repository
        self._service_level = service_level
        self._books = Books()
        self._editions = Editions(name, config, pool_factory, self._books, self._leave)
        self._reloader = Reloader(
            name,
            self._editions,
            repository,
            trial_s=config.trial_s,
            keeps_others=config.versions != (LATEST,),
            on_switch=self._point,
        )
        self._threads = 1
        self._current: Track | None = None  # for who pins nothing
        self._lanes: dict[RoutedLane, None] = {}
        self._tasks: list[asyncio.Task[None]] = []
        self._reloading: asyncio.Task[str] | None = None
        self._is_closed = False

    # --- life

    async def start(self, threads: int) -> None:
        """Start what the repository holds; raises ``EngineError`` when that cannot be served.
        The caller closes."""
        self._threads = threads
        offered: tuple[Variants, ...] = ((self._manifest,),)
        if self._repository is not None:
            offered = await asyncio.to_thread(self._repository.read_accepted)
            self._note_rejected(await asyncio.to_thread(self._repository.rejected), offered)
        for variants in offered:
            edition = await self._open_first(variants)
            self._reloader.log.rejected.pop(edition.label, None)  # nothing better starts
            self._editions.served[edition.label] = self._editions.active = edition
        self._point()
        self._tasks.append(asyncio.create_task(self._tend(), name=f"tend-{self._name}"))
        if self._repository is not None and self.config.watch_s > 0:
            watch = self._watch_files(self._repository)
            self._tasks.append(asyncio.create_task(watch, name=f"watch-files-{self._name}"))

    async def aclose(self, deadline: float) -> None:
        """Answer until ``deadline`` (loop time), then end every worker; idempotent."""
        self._is_closed = True
        tasks: list[asyncio.Task[Any]] = [*self._tasks]
        self._tasks.clear()
        if self._reloading is not None:
            tasks.append(self._reloading)
        for task in tasks:
            task.cancel()
        try:
            if tasks:
                await asyncio.wait(tasks)
            await self._reloader.wait_saved()
        finally:
            await self._editions.aclose(deadline)

    async def reload(self, version: str | None = None) -> str:
        """See :meth:`engine.versions.reload.Reloader.load`. A caller that is cancelled does not
        end the reload."""
        if self._is_closed or not self._tasks:
            raise Unavailable(f"model {self._name} is not serving")
        if self._reloading is not None:
            raise Overloaded(f"a reload of {self._name} is under way", retry_after_s=1.0)
        loading = asyncio.create_task(
            self._reloader.load(self._threads, version), name=f"reload-{self._name}"
        )
        self._reloading = loading
        loading.add_done_callback(self._note_reloaded)
        await asyncio.wait({loading})
        if loading.cancelled():
            raise Unavailable(f"model {self._name} was closed meanwhile")
        return loading.result()

    async def unload(self) -> None:
        """See :meth:`engine.versions.reload.Reloader.unload`; ``reload`` brings it back."""
        await self._reloader.unload()

    # --- lanes

    def open_lane(self, spec: LaneSpec, emit: Emit) -> RoutedLane:
        """Raises ``UnknownModel`` for a version that is not served."""
        if spec.version is not None and self._pinned(spec.version) is None:
            known = ", ".join(map(repr, self._labels()))
            raise UnknownModel(f"model {self._name!r} has version {known}, not {spec.version!r}")
        lane = RoutedLane(self, spec, emit)
        self._lanes[lane] = None
        return lane

    def route(self, spec: LaneSpec) -> Track:
        if self._is_closed:
            raise Unavailable("the engine is closing")
        if self._current is None:
            what = "unloaded" if self._tasks else "starting"
            raise Unavailable(f"the model is {what}")
        track = self._current if spec.version is None else self._track_of(spec.version)
        if track is None:
            raise Unavailable(f"version {spec.version!r} of {self._name!r} is not served any more")
        return track

    def forget(self, lane: RoutedLane) -> None:
        self._lanes.pop(lane, None)

    # --- statistics

    def statistics(self) -> ModelStatistics:
        """Over all versions; versions, workers and readiness are the active one's."""
        return describe(
            self._name,
            manifest=self._manifest,
            config=self.config,
            editions=self._editions,
            current=self._current,
            books=self._books,
            reloader=self._reloader,
            num_lanes=len(self._lanes),
            now=asyncio.get_running_loop().time(),
        )

    def check_integrity(self) -> None:
        """Assert that the books of every version agree; for tests."""
        for edition in self._editions.in_memory():
            for track in edition.tracks:
                track.batcher.check_integrity()

    # --- helpers

    async def _open_first(self, variants: Variants) -> Edition:
        """Start one version; in place of a newest one that does not start, the one before it."""
        try:
            return await self._editions.open(variants, self._threads)
        except StartupError as error:
            before = await self._version_before(variants)
            if before is None:
                raise
            self._reloader.log.reject(edition_label(variants), f"did not start: {error}")
            logger.error("%s: %s; trying the version before", self._name, error)
            return await self._editions.open(before, self._threads)

    def _note_rejected(self, rejected: Mapping[str, str], offered: Iterable[Variants]) -> None:
        """Say which versions are passed over, because they lost a trial before this start."""
        served = {edition_label(variants) for variants in offered}
        for label, reason in rejected.items():
            if label not in served:
                self._reloader.log.reject(label, reason)
                logger.warning("%s: version %s is passed over: %s", self._name, label, reason)

    async def _version_before(self, variants: Variants) -> Variants | None:
        if self._repository is None or self.config.versions != (LATEST,):
            return None
        versions = await asyncio.to_thread(self._repository.versions)
        rejected = self._reloader.log.rejected
        there = versions[: versions.index(edition_label(variants))]
        older = [version for version in there if version not in rejected] or there
        if not older:
            return None
        return (await asyncio.to_thread(self._repository.read, older[-1]))[0]

    def _labels(self) -> list[str]:
        return list(self._editions.served) or [self._manifest.version]

    def _pinned(self, version: str) -> str | None:
        """The version if it may be pinned; before the start the manifest's may."""
        is_known = version in self._labels() or self._track_of(version) is not None
        return version if is_known else None

    def _track_of(self, version: str) -> Track | None:
        """A version's best variant, or exactly the one that is named (``3+int8``)."""
        edition = self._editions.served.get(version.partition("+")[0])
        if edition is None:
            return None
        if version == edition.label:
            return edition.tracks[0]
        return next((track for track in edition.tracks if track.version == version), None)

    def _point(self) -> None:
        """Send those who pin nothing to the active version, in the variant for the pressure."""
        active = self._editions.active
        track = None if active is None else active.at_level(self._service_level())
        if track is not self._current and track is not None and self._current is not None:
            logger.info("%s: version %s serves", self._name, track.version)
        self._current = track

    def _leave(self, track: Track) -> None:
        for lane in self._lanes:
            lane.leave(track)

    def _note_reloaded(self, loading: asyncio.Task[str]) -> None:
        self._reloading = None
        error = None if loading.cancelled() else loading.exception()
        if error is not None and not isinstance(error, EngineError):
            logger.error("%s: a reload failed", self._name, exc_info=error)

    async def _tend(self) -> None:
        """The model's own task: trial, pressure, workers."""
        while True:
            loop = asyncio.get_running_loop()
            await asyncio.sleep(next_tick(loop.time(), TICK_S) - loop.time())
            try:
                self._tick(loop.time())
            except Exception:  # the model must not be left without a guardian
                logger.exception("%s: looking after the model failed", self._name)

    def _tick(self, now: float) -> None:
        self._reloader.judge(now)
        self._point()
        for edition in self._editions.in_memory():
            for track in edition.tracks:
                track.tend()

    async def _watch_files(self, repository: Repository) -> None:
        """Reload when the files have changed and then stood still for ``watch_s``."""
        watch: FileWatch | None = None
        while True:
            try:
                stamp = await asyncio.to_thread(repository.stamp)
                watch = watch or FileWatch(stamp)
                if watch.has_settled(stamp):
                    await self.reload()
            except EngineError as error:
                logger.warning("%s: not reloaded: %s", self._name, error)
            except Exception:  # a disk that fails must not end the watch
                logger.exception("%s: watching the model's files failed", self._name)
            await asyncio.sleep(self.config.watch_s)
