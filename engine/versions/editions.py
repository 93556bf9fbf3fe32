"""The versions of one model that are in memory: started, served, kept in reserve, drained."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterator
from dataclasses import dataclass

from engine.config import ModelConfig
from engine.models.repository import Variants
from engine.together import aclose_together, start_together
from engine.versions.books import Books
from engine.versions.track import PoolFactory, Track

logger = logging.getLogger(__name__)

DRAIN_S = 30.0  # for a version that leaves to answer what it accepted


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Edition:
    """One version in its variants, best first; ``label`` is what clients pin."""

    label: str
    tracks: tuple[Track, ...]

    def at_level(self, level: int) -> Track:
        """The track for so much pressure; the last variant serves all that is above."""
        return self.tracks[min(max(level, 0), len(self.tracks) - 1)]


def edition_label(variants: Variants) -> str:
    """The version's own number, whatever its best variant is."""
    return variants[0].version.partition("+")[0]


class Editions:
    """Runs on the event loop's thread. ``on_retire`` hears of every track that is to leave;
    ``books`` keep the counts of those that left."""

    def __init__(
        self,
        name: str,
        config: ModelConfig,
        pool_factory: PoolFactory,
        books: Books,
        on_retire: Callable[[Track], None],
    ) -> None:
        self.served: dict[str, Edition] = {}  # that may be pinned, by label, oldest first
        self.active: Edition | None = None  # for who pins nothing
        self.reserve: Edition | None = None  # warm, in case the active one has to go
        self._name = name
        self._config = config
        self._pool_factory = pool_factory
        self._books = books
        self._on_retire = on_retire
        self._retiring: dict[Edition, asyncio.Task[None]] = {}

    def in_memory(self) -> Iterator[Edition]:
        """All that answer items, each once."""
        everyone = [*self.served.values(), self.active, self.reserve, *self._retiring]
        yield from dict.fromkeys(each for each in everyone if each is not None)

    async def open(self, variants: Variants, threads: int) -> Edition:
        """Spawn and warm up one version, beside what serves; it takes nothing yet.

        Raises:
            StartupError: a variant could not start; nothing is left.
        """
        tracks = tuple(
            Track(self._name, manifest, self._config, threads, self._pool_factory)
            for manifest in variants
        )
        edition = Edition(label=edition_label(variants), tracks=tracks)
        try:
            await start_together({track.version: track for track in tracks})
        except BaseException:
            await self._close(edition, asyncio.get_running_loop().time())
            raise
        return edition

    def retire(self, edition: Edition) -> None:
        """Take nothing more, answer what was accepted, then end its workers; in the background."""
        for track in edition.tracks:
            self._on_retire(track)
        deadline = asyncio.get_running_loop().time() + DRAIN_S
        task = asyncio.create_task(
            self._close(edition, deadline), name=f"drain-{self._name}-{edition.label}"
        )
        self._retiring[edition] = task
        task.add_done_callback(lambda done: self._note_retired(edition, done))

    async def wait_retired(self) -> None:
        """Wait until nothing drains any more; cancelled, the draining goes on."""
        if self._retiring:
            await asyncio.wait(set(self._retiring.values()))

    async def aclose(self, deadline: float) -> None:
        """Answer until ``deadline``, then end everything; idempotent."""
        draining = set(self._retiring.values())
        for task in draining:
            task.cancel()  # it gets no longer than the others
        if draining:
            await asyncio.wait(draining, timeout=deadline - asyncio.get_running_loop().time())
        tracks = [track for edition in self.in_memory() for track in edition.tracks]
        names = {f"{number}-{track.version}": track for number, track in enumerate(tracks)}
        await aclose_together(names, deadline)
        if draining:
            await asyncio.wait(draining)  # bounded: their workers are gone

    async def _close(self, edition: Edition, deadline: float) -> None:
        await aclose_together({track.version: track for track in edition.tracks}, deadline)

    def _note_retired(self, edition: Edition, done: asyncio.Task[None]) -> None:
        if done.cancelled():
            return  # by ``aclose``, which ends it itself
        del self._retiring[edition]
        remaining = [track for each in self.in_memory() for track in each.tracks]
        for track in edition.tracks:
            self._books.keep(track, remaining)
        if done.exception() is not None:
            logger.error(
                "%s: draining version %s failed",
                self._name,
                edition.label,
                exc_info=done.exception(),
            )
