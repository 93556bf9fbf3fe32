"""A model of several versions whose workers are fakes, and a repository that a test fills."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

from engine.batching.executor import ExecutorEvents, Work
from engine.config import ModelConfig
from engine.errors import EngineError, StartupError
from engine.manifest import Manifest
from engine.models.repository import Repository, Stamp, Variants
from engine.types import Item, LaneSpec, Outcome, Progress, Result
from engine.versions.lane import RoutedLane
from engine.versions.served_model import ServedModel
from tests.fakes.executor import FakeExecutor, echo


class FakeRepository(Repository):
    """``offered`` is what the policy would serve, as labels; a broken one fails to start.
    ``verdicts`` are those that hold, by label."""

    def __init__(self, *offered: str, variants: tuple[str, ...] = ("",)) -> None:
        self.offered = list(offered)
        self.error: EngineError | None = None
        self.revision = 0
        self.there: list[str] = []  # default: what is offered
        self.verdicts: dict[str, str] = {}
        self._suffixes = variants

    def read(self, version: str | None = None) -> tuple[Variants, ...]:
        if self.error is not None:
            raise self.error
        labels = self.offered if version is None else [version]
        return tuple(
            tuple(Manifest(name="m", version=label + suffix) for suffix in self._suffixes)
            for label in labels
        )

    def read_accepted(self) -> tuple[Variants, ...]:
        accepted = [label for label in self.versions() if label not in self.verdicts]
        labels = [label for label in self.offered if label in accepted] or accepted[-1:]
        return tuple(each for label in labels or self.offered for each in self.read(label))

    def versions(self) -> tuple[str, ...]:
        return tuple(self.there or self.offered)

    def fingerprint(self, version: str) -> str:
        return f"{version} in revision {self.revision}"

    def rejected(self) -> dict[str, str]:
        return dict(self.verdicts)

    def reject(self, version: str, fingerprint: str, reason: str) -> None:
        if fingerprint == self.fingerprint(version):
            self.verdicts[version] = reason

    def forgive(self, version: str) -> None:
        self.verdicts.pop(version, None)

    def stamp(self) -> Stamp:
        return ((",".join(self.offered), self.revision, 0),)


class VersionBench:
    """``pools`` by version label, newest last; ``told`` collects every lane's outcomes.

    ``run_s``, ``broken`` and ``respond`` say how the workers of a version behave.
    """

    def __init__(
        self, *offered: str, variants: tuple[str, ...] = ("",), level: int = 0, **config: Any
    ) -> None:
        self.repository = FakeRepository(*offered, variants=variants)
        self.run_s: dict[str, float] = {}
        self.broken: set[str] = set()
        self.respond: dict[str, Callable[[Work], bytes | EngineError]] = {}
        self.pools: dict[str, list[FakeExecutor]] = {}
        self.start_gate: asyncio.Event | None = None
        self.told: dict[int, Outcome] = {}
        self.level = level
        self.model = ServedModel(
            "m",
            Manifest(name="m", version=offered[-1]),
            ModelConfig(**config),
            self._build_pool,
            repository=self.repository,
            service_level=lambda: self.level,
        )

    def open_lane(self, **spec: Any) -> RoutedLane:
        return self.model.open_lane(LaneSpec(model="m", **spec), self._tell)

    def versions_told(self) -> list[str]:
        """Of the results, in the order of their items."""
        results = [self.told[each] for each in sorted(self.told)]
        return [result.version for result in results if isinstance(result, Result)]

    def states(self) -> dict[str, str]:
        return {each.version: each.state for each in self.model.statistics().versions}

    async def feed(self, lane: RoutedLane, first: int, count: int, pause_s: float = 0.05) -> None:
        """Offer ``count`` items, one per ``pause_s``; deadlines are a second away."""
        loop = asyncio.get_running_loop()
        for number in range(first, first + count):
            lane.offer(Item(id=number, payload=b"x", deadline=loop.time() + 1.0))
            await asyncio.sleep(pause_s)

    def _tell(self, item_id: int, outcome: Progress | Outcome) -> None:
        assert item_id not in self.told, f"{item_id} was answered twice"
        assert not isinstance(outcome, Progress)
        self.told[item_id] = outcome

    def _build_pool(
        self, manifest: Manifest, config: ModelConfig, threads: int, events: ExecutorEvents
    ) -> FakeExecutor:
        version = manifest.version
        pool = FakeExecutor(
            events,
            run_s=self.run_s.get(version, 0.01),
            respond=self.respond.get(version, echo),
            version=version,
        )
        pool.start_gate = self.start_gate
        if version in self.broken:
            pool.start_error = StartupError(f"version {version} is corrupt")
        self.pools.setdefault(version, []).append(pool)
        return pool
