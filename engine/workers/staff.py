"""A pool's workers: started together, then hired, retired and replaced one at a time."""

from __future__ import annotations

import asyncio
import logging
from collections import Counter
from collections.abc import Callable, Coroutine
from typing import Any

from engine.errors import EngineError
from engine.workers.host import WorkerHost
from engine.workers.wear import Wear

logger = logging.getLogger(__name__)

DRAIN_S = 30.0  # for a leaving worker to answer what it holds
RETRY_S = 30.0  # after a new worker that did not start


class Staff:
    """Runs on the loop that ``start`` ran on; ``make_host`` builds the worker of an index.

    One change is under way at a time, so memory never holds more than one worker too many. A
    worker that leaves takes no more, answers what it holds and is then ended: nothing is lost.
    """

    def __init__(self, model: str, make_host: Callable[[int], WorkerHost]) -> None:
        self.replaced: Counter[Wear] = Counter()
        self._model = model
        self._make_host = make_host
        self._hosts: tuple[WorkerHost, ...] = ()
        self._passing: list[WorkerHost] = []  # not serving yet, or not any more
        self._change: asyncio.Task[None] | None = None
        self._next_change_at = 0.0  # loop time
        self._former_restarts = 0  # of workers that have left
        self._former_cpu_s = 0.0

    @property
    def hosts(self) -> tuple[WorkerHost, ...]:
        """Those that serve, or will again by themselves."""
        return self._hosts

    @property
    def restarts(self) -> int:
        return self._former_restarts + sum(host.restarts for host in self._hosts)

    def cpu_s(self) -> float:
        """Processor time of all workers so far."""
        return self._former_cpu_s + sum(host.cpu_s() for host in self._hosts)

    def can_change(self, now: float) -> bool:
        """Whether ``hire``, ``retire`` or ``replace`` may be called at loop time ``now``."""
        return self._change is None and now >= self._next_change_at

    async def start(self, count: int) -> None:
        """Start so many workers at once and wait until each is ready.

        Raises:
            StartupError: one could not load. What was started must still be closed.
        """
        self._hosts = tuple(self._make_host(index) for index in range(count))
        starts = [
            asyncio.create_task(host.start(), name=f"start-{self._model}") for host in self._hosts
        ]
        try:
            await asyncio.wait(starts, return_when=asyncio.FIRST_EXCEPTION)
            for start in starts:
                if start.done():
                    start.result()
        finally:
            for start in starts:
                start.cancel()
            await asyncio.gather(*starts, return_exceptions=True)

    def hire(self) -> None:
        """One worker more, once it is warm."""
        self._begin(self._hire(), "hire")

    def retire(self) -> None:
        """One worker fewer: the one that joined last."""
        self._begin(self._leave(self._hosts[-1]), "retire")

    def replace(self, host: WorkerHost, cause: Wear) -> None:
        """A fresh worker in its place: spawn, warm up, switch, drain the old one."""
        self._begin(self._replace(host, cause), "replace")

    async def aclose(self, deadline: float) -> None:
        """End all workers; those that serve may finish until ``deadline`` (loop time)."""
        if self._change is not None:
            self._change.cancel()
            await asyncio.wait({self._change})
        everyone = [*self._hosts, *self._passing]
        closing = [asyncio.create_task(host.aclose(deadline)) for host in everyone]
        if closing:
            await asyncio.wait(closing)
            for task in closing:
                task.result()
        self._passing.clear()

    def _begin(self, change: Coroutine[Any, Any, None], what: str) -> None:
        assert self._change is None
        self._change = asyncio.create_task(change, name=f"{what}-{self._model}")
        self._change.add_done_callback(self._note_change_over)

    def _note_change_over(self, change: asyncio.Task[None]) -> None:
        self._change = None
        error = None if change.cancelled() else change.exception()
        if error is None:
            return
        self._next_change_at = asyncio.get_running_loop().time() + RETRY_S
        if isinstance(error, EngineError):
            logger.warning("%s: a new worker did not start: %s", self._model, error)
        else:
            logger.error("%s: changing the workers failed", self._model, exc_info=error)

    async def _hire(self) -> None:
        host = await self._start_one()
        self._hosts = (*self._hosts, host)
        host.announce_room()

    async def _replace(self, old: WorkerHost, cause: Wear) -> None:
        new = await self._start_one()
        self._hosts = tuple(new if host is old else host for host in self._hosts)
        self.replaced[cause] += 1
        logger.info("%s: worker %d replaced, cause %s", self._model, old.index, cause.value)
        new.announce_room()
        await self._end(old)

    async def _leave(self, host: WorkerHost) -> None:
        self._hosts = tuple(each for each in self._hosts if each is not host)
        await self._end(host)

    async def _start_one(self) -> WorkerHost:
        in_use = {host.index for host in (*self._hosts, *self._passing)}
        index = next(index for index in range(len(in_use) + 1) if index not in in_use)
        host = self._make_host(index)
        self._passing.append(host)
        try:
            await host.start()
        except EngineError:
            self._passing.remove(host)
            raise
        self._passing.remove(host)
        return host

    async def _end(self, host: WorkerHost) -> None:
        self._passing.append(host)
        await host.aclose(asyncio.get_running_loop().time() + DRAIN_S)
        self._passing.remove(host)
        self._former_restarts += host.restarts
        self._former_cpu_s += host.cpu_s()
