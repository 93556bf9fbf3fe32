"""From one version to the next, and back by itself when that one is worse."""

from __future__ import annotations

import asyncio
import logging
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field

from engine.errors import EngineError, Overloaded, Unavailable
from engine.models.repository import Repository
from engine.versions.editions import Edition, Editions, edition_label
from engine.versions.trial import Trial, Verdict

logger = logging.getLogger(__name__)

_MAX_REJECTED = 16
_SAVE_S = 5.0  # for a disk to take a verdict; later is too late
DONE, FAILED, ROLLED_BACK = "done", "failed", "rolled_back"
UNLOADED = "unloaded"


@dataclass(slots=True, kw_only=True)
class ChangeLog:
    """What became of reloads; ``rejected`` says why a version does not serve, newest last."""

    count: Counter[str] = field(default_factory=Counter)  # by how they ended
    rejected: dict[str, str] = field(default_factory=dict)
    last: str = ""  # in words

    def note(self, how: str, words: str) -> None:
        self.count[how] += 1
        self.last = words

    def reject(self, label: str, reason: str) -> None:
        self.rejected.pop(label, None)
        self.rejected[label] = reason
        while len(self.rejected) > _MAX_REJECTED:
            del self.rejected[next(iter(self.rejected))]


class Reloader:
    """Spawn, warm up, switch, drain; then watch the new version's trial.

    One change at a time. While the active version is on trial the one before stays warm, so that
    a roll-back is one assignment. In memory are at most the old version, the new one, and those
    that the policy serves besides; what drains is gone before another is started. Who lost its
    trial is not tried again until its files change or somebody names it, restarts included.
    """

    def __init__(
        self,
        name: str,
        editions: Editions,
        repository: Repository | None,
        *,
        trial_s: float,
        keeps_others: bool,
        on_switch: Callable[[], None],
    ) -> None:
        self.log = ChangeLog()
        self._name = name
        self._editions = editions
        self._repository = repository
        self._trial_s = trial_s
        self._keeps_others = keeps_others
        self._on_switch = on_switch
        self._trials: tuple[Trial, ...] = ()  # one per variant
        self._tried_fingerprint = ""  # of the active version's files when they were read
        self._saving: asyncio.Task[None] | None = None
        self._changing = asyncio.Lock()

    @property
    def is_on_trial(self) -> bool:
        return bool(self._trials)

    async def load(self, threads: int, version: str | None = None) -> str:
        """Serve what the repository holds now, or ``version``; returns the active version.

        A version under trial counts as accepted. Cancelled, the old version goes on serving.

        Raises:
            Overloaded: a change is under way already.
            Unavailable: the model cannot be reloaded.
            UnknownModel, StoreError: there is nothing that could be loaded.
            StartupError: it did not start; the old version goes on serving.
        """
        if self._repository is None:
            raise Unavailable(f"model {self._name} was not given as files, it cannot be reloaded")
        if self._changing.locked():
            raise Overloaded(f"a reload of {self._name} is under way", retry_after_s=1.0)
        async with self._changing:
            try:
                return await self._load(self._repository, threads, version)
            except EngineError as error:
                logger.error("%s: the reload failed, nothing changed: %s", self._name, error)
                self.log.note(FAILED, f"reload failed: {error}")
                raise

    async def unload(self) -> None:
        """Retire every version and wait until they are gone.

        Raises:
            Overloaded: a change is under way already.
        """
        if self._changing.locked():
            raise Overloaded(f"a reload of {self._name} is under way", retry_after_s=1.0)
        async with self._changing:
            editions = self._editions
            leaving = dict.fromkeys([*editions.served.values(), editions.reserve])
            editions.served, editions.active, editions.reserve = {}, None, None
            self._trials = ()
            self._on_switch()
            for edition in leaving:
                if edition is not None:
                    editions.retire(edition)
            self.log.last = UNLOADED
            logger.info("%s: unloaded", self._name)
            await editions.wait_retired()

    def judge(self, now: float) -> None:
        """Look at the trial, if there is one; a few times a second."""
        active, reserve = self._editions.active, self._editions.reserve
        if not self._trials or active is None or reserve is None:
            return
        judgements = [
            trial.judge(now, track.figures.experience(), track.fault)
            for trial, track in zip(self._trials, active.tracks, strict=True)
        ]
        for verdict, reason in judgements:
            if verdict is Verdict.ROLL_BACK:
                return self._roll_back(active, reserve, reason)
        if all(verdict is Verdict.STAYS for verdict, _ in judgements):
            self._conclude(active, judgements[0].reason)

    async def wait_saved(self) -> None:
        """Wait, not for ever, until the last verdict is on disk; cancelled, it goes on."""
        if self._saving is not None:
            await asyncio.wait({self._saving}, timeout=_SAVE_S)

    async def _load(self, repository: Repository, threads: int, version: str | None) -> str:
        await self.wait_saved()
        if version is None:
            offered = await asyncio.to_thread(repository.read_accepted)
        else:
            offered = await asyncio.to_thread(repository.read, version)
            await asyncio.to_thread(repository.forgive, version)
        newest = edition_label(offered[-1])
        fingerprint = await asyncio.to_thread(repository.fingerprint, newest)
        await self._editions.wait_retired()
        opened: list[Edition] = []
        for variants in offered:
            label = edition_label(variants)
            if variants is not offered[-1] and label in self._editions.served:
                continue
            try:
                edition = await self._editions.open(variants, threads)
            except BaseException as error:
                for each in opened:
                    self._editions.retire(each)
                if isinstance(error, EngineError):
                    self.log.reject(label, f"did not start: {error}")
                raise
            opened.append(edition)
        labels = {edition_label(variants) for variants in offered}
        self._tried_fingerprint = fingerprint
        self._switch(opened, labels if version is None else None)
        return opened[-1].label

    def _switch(self, opened: list[Edition], labels: set[str] | None) -> None:
        """The last of ``opened`` becomes active; versions outside of ``labels`` leave."""
        editions, new = self._editions, opened[-1]
        if editions.active is not None and editions.reserve is not None:
            self._conclude(editions.active, "accepted: another reload came before its trial ended")
        old = editions.active
        leaving = dict(editions.served)
        if self._keeps_others:
            kept = leaving if labels is None else {n: e for n, e in leaving.items() if n in labels}
            leaving = {n: e for n, e in leaving.items() if n not in kept}
        else:
            kept = {}
        replaced = [kept[each.label] for each in opened if each.label in kept]
        editions.served = {**kept, **{edition.label: edition for edition in opened}}
        editions.active = new
        self.log.rejected.pop(new.label, None)
        self._begin_trial(old, new)
        self._on_switch()
        for edition in [*leaving.values(), *replaced]:
            if edition is not editions.reserve:
                editions.retire(edition)
        before = "" if old is None else f", version {old.label} before"
        self.log.note(DONE, f"version {new.label} serves{before}")
        logger.info("%s: %s", self._name, self.log.last)

    def _begin_trial(self, old: Edition | None, new: Edition) -> None:
        if old is None or self._trial_s <= 0:
            return
        self._editions.reserve = old
        now = asyncio.get_running_loop().time()
        self._trials = tuple(
            Trial(track.figures.experience(), now, self._trial_s) for track in old.tracks
        )

    def _conclude(self, active: Edition, reason: str) -> None:
        """The active version stays; its predecessor leaves unless the policy serves it too."""
        reserve, self._editions.reserve, self._trials = self._editions.reserve, None, ()
        logger.info("%s: version %s stays: %s", self._name, active.label, reason)
        if reserve is not None and reserve not in self._editions.served.values():
            self._editions.retire(reserve)

    def _roll_back(self, bad: Edition, good: Edition, reason: str) -> None:
        editions = self._editions
        editions.served = {
            label: edition for label, edition in editions.served.items() if edition is not bad
        }
        editions.served.pop(good.label, None)
        editions.served[good.label] = editions.active = good
        editions.reserve, self._trials = None, ()
        self._on_switch()
        editions.retire(bad)
        words = f"rolled back from version {bad.label} to {good.label}: {reason}"
        self.log.reject(bad.label, reason)
        self.log.note(ROLLED_BACK, words)
        logger.error("%s: %s", self._name, words)
        if self._repository is not None:
            # One at a time: the next trial begins with a load, and that waits for this.
            saving = self._save(self._repository, bad.label, self._tried_fingerprint, reason)
            self._saving = asyncio.create_task(saving, name=f"save-verdict-{self._name}")

    async def _save(
        self, repository: Repository, label: str, fingerprint: str, reason: str
    ) -> None:
        try:
            await asyncio.to_thread(repository.reject, label, fingerprint, reason)
        except Exception:  # the old version serves all the same
            logger.exception("%s: keeping the verdict on version %s failed", self._name, label)
