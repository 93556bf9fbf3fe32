"""The workers of one model: an :class:`engine.batching.executor.Executor` over N processes."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Sequence
from dataclasses import dataclass, field
from enum import Enum

from engine.batching.executor import ExecutorEvents, Work
from engine.config import ModelConfig
from engine.errors import InternalError, InvalidInput, Unavailable
from engine.log_format import format_in_use
from engine.manifest import Manifest
from engine.types import Failed, Result, Timing
from engine.workers.channel import UP_OVERHEAD_BYTES
from engine.workers.child import Launch
from engine.workers.host import WorkerHost
from engine.workers.messages import BatchRan, Fault, ItemDone, ItemFailed, Ready, Start, Task, Up
from engine.workers.placement import Placement
from engine.workers.staff import Staff
from engine.workers.supervisor import HostState
from engine.workers.tending import Tending

logger = logging.getLogger(__name__)


class Phase(Enum):
    """Life of a pool; events are reported while it is ``SERVING``, answers and losses always."""

    NEW = "new"
    SERVING = "serving"
    CLOSED = "closed"


@dataclass(frozen=True, slots=True, kw_only=True)
class PoolStatistics:
    """Snapshot of the workers; ``reason`` says why ``ready`` is false.

    ``memory_share`` is the fullest worker's share of its memory ceiling, 0 without one;
    ``replaced`` counts planned replacements by cause; ``cpu_s`` is the processor time of all
    workers so far.
    """

    ready: bool
    reason: str
    workers_alive: int  # ready to serve
    workers_wanted: int
    restarts: int
    rss_bytes: tuple[int, ...] = field(default=())
    providers: tuple[str, ...] = ()
    slab_used_bytes: int = 0
    memory_share: float = 0.0
    replaced: dict[str, int] = field(default_factory=dict)
    cpu_s: float = 0.0


class WorkerPool:
    """Worker processes and the slab that feeds them.

    Runs on the event loop that ``start`` runs on; that thread must outlive the pool, because the
    workers die with it. Bounds: ``cuda_streams + prefetch_count`` batches per worker, the slab's
    bytes. ``threads`` is intra-op threads per worker, at least 1: whoever knows all models divides
    the container's cores between them (:func:`engine.workers.quota.threads_per_worker`).
    """

    def __init__(
        self, manifest: Manifest, config: ModelConfig, threads: int, events: ExecutorEvents
    ) -> None:
        self._manifest = manifest
        self._config = config
        self._threads = threads
        self._events = events
        self._staff = Staff(manifest.name, self._make_host)
        self._tending = Tending(manifest.name, config, self._staff)
        self._placement: Placement | None = None
        self._warmup_run_s: dict[int, float] = {}
        self._providers: tuple[str, ...] = ()
        self._phase = Phase.NEW

    @property
    def free_slots(self) -> int:
        return sum(host.free_slots for host in self._staff.hosts)

    @property
    def idle_workers(self) -> int:
        return sum(host.is_idle for host in self._staff.hosts)

    @property
    def idle_streams(self) -> int:
        return sum(host.idle_streams for host in self._staff.hosts)

    @property
    def warmup_run_s(self) -> dict[int, float]:
        return self._warmup_run_s

    async def start(self) -> None:
        """Start all workers and wait until every one is ready.

        Raises:
            StartupError: a worker could not load, or the slab does not fit into memory;
                everything is cleaned up.
            Unavailable: closed meanwhile.
        """
        if self._phase is not Phase.NEW:
            raise Unavailable("closed before it started")
        self._placement = Placement(
            self._manifest.name,
            slab_bytes=self._config.slab_bytes,
            max_item_bytes=self._config.max_item_bytes,
        )
        try:
            await self._staff.start(self._config.first_workers)
        except BaseException:
            await self.aclose(asyncio.get_running_loop().time())
            raise
        self._phase = Phase.SERVING
        self.on_room()

    def tend(self, queue_age_s: float) -> None:
        """Look after the number and the health of the workers; a few times a second.

        ``queue_age_s`` is how long what is answered now has waited for a worker.
        """
        if self._phase is Phase.SERVING:
            self._tending.look(asyncio.get_running_loop().time(), queue_age_s)

    def dispatch(self, batch: Sequence[Work], *, alone: bool = False) -> int:
        """See :class:`engine.batching.executor.Executor`.

        An item that is too large is taken and answered with ``InvalidInput`` from the loop.
        """
        host = self._choose_host(alone)
        if host is None or self._placement is None:
            return 0
        tasks: list[Task] = []
        taken = 0
        for work in batch[: self._config.max_batch_size]:
            refusal = self._placement.check_size(work)
            if refusal is not None:
                self._refuse(work.key, refusal)
            else:
                span = self._placement.try_place(work)
                if span is None:
                    break
                tasks.append(Task(work.key, span))
            taken += 1
        if tasks:
            host.dispatch(tasks, alone=alone)
        return taken

    def withdraw(self, key: int) -> None:
        """See :class:`engine.batching.executor.Executor`."""
        for host in self._staff.hosts:
            host.withdraw(key)

    def release(self, key: int) -> None:
        """Free a lost item's slab extent; unknown keys are ignored."""
        if self._placement is None or not self._placement.release(key):
            return
        if self._placement.is_short:
            self.on_room()

    def statistics(self) -> PoolStatistics:
        """Cheap snapshot: one small read from /proc per worker."""
        hosts = self._staff.hosts
        alive = [host for host in hosts if host.state is HostState.READY]
        reasons = [f"worker {host.index}: {host.reason}" for host in hosts if host.reason]
        is_new = self._phase is Phase.NEW
        return PoolStatistics(
            ready=bool(alive),
            reason="" if alive else "; ".join(reasons) or "not started",
            workers_alive=len(alive),
            workers_wanted=self._config.first_workers if is_new else len(hosts),
            restarts=self._staff.restarts,
            rss_bytes=tuple(host.rss_bytes() for host in alive),
            providers=self._providers,
            slab_used_bytes=self._placement.used_bytes if self._placement is not None else 0,
            memory_share=self._tending.memory_share,
            cpu_s=self._staff.cpu_s(),
            replaced={wear.value: count for wear, count in self._staff.replaced.items()},
        )

    def check_integrity(self) -> None:
        """Assert that slab extents and known items agree."""
        if self._placement is not None:
            self._placement.check_integrity()

    async def aclose(self, deadline: float) -> None:
        """Finish what the workers hold until ``deadline`` (loop time), then stop and reap them.

        What is still unanswered then is reported lost. Idempotent.
        """
        self._phase = Phase.CLOSED
        await self._staff.aclose(deadline)
        if self._placement is not None:
            self._placement.close()
            self._placement = None

    # from the hosts

    def on_ready(self, ready: Ready) -> None:
        self._warmup_run_s = ready.warmup_run_s
        self._providers = ready.providers
        self.on_room()

    def on_room(self) -> None:
        if self._phase is Phase.SERVING and self._placement is not None and self.free_slots > 0:
            self._placement.is_short = False
            self._events.on_room()

    def on_batch_ran(self, ran: BatchRan) -> None:
        self._tending.note_run(ran.run_us / 1e6)
        if ran.size > 0:
            self._events.on_batch(ran.size, ran.run_us / 1e6)

    def on_item(self, answer: ItemDone | ItemFailed, dispatched_us: int) -> None:
        self.release(answer.key)
        if isinstance(answer, ItemDone):
            self._events.on_done(answer.key, self._result(answer, dispatched_us))
        elif answer.fault is Fault.WITHDRAWN:
            self._events.on_done(answer.key, Failed(Unavailable("the item was withdrawn")))
        elif answer.fault is Fault.INVALID_INPUT:
            self._events.on_done(answer.key, Failed(InvalidInput(answer.detail)))
        else:
            self._events.on_done(answer.key, Failed(InternalError(answer.detail)))

    def on_death(self, keys: Sequence[int], reason: str) -> None:
        if keys:
            self._events.on_lost(keys, reason)
        gone = (HostState.OPEN, HostState.PROBING, HostState.CLOSED)
        hosts = self._staff.hosts
        if self._phase is Phase.SERVING and all(host.state in gone for host in hosts):
            probes = [host.probe_at for host in hosts if host.probe_at is not None]
            self._events.on_unavailable(self.statistics().reason, min(probes, default=None))

    # helpers

    def _make_host(self, index: int) -> WorkerHost:
        assert self._placement is not None
        launch = self._launch(self._placement.fd)
        return WorkerHost(index, launch, self._start_message(), self._config, self)

    def _launch(self, slab_fd: int) -> Launch:
        return Launch(
            model=self._manifest.name,
            module="engine.workers.process",
            arguments=("--slab-fd", str(slab_fd)),
            inherited_fds=(slab_fd,),
            messages=Up,
            max_message_bytes=self._config.max_output_bytes + UP_OVERHEAD_BYTES,
        )

    def _start_message(self) -> Start:
        config = self._config
        return Start(
            manifest=self._manifest,
            execution_providers=config.execution_providers,
            threads=self._threads,
            prepare_threads=config.prepare_threads,
            max_batch_size=config.max_batch_size,
            prefetch_count=config.prefetch_count,
            max_output_bytes=config.max_output_bytes,
            log_level=logger.getEffectiveLevel(),
            log_format=format_in_use(),
            gpu=config.gpu,
            cuda_streams=config.cuda_streams,
        )

    def _choose_host(self, alone: bool) -> WorkerHost | None:
        """The least loaded worker with room; an idle one for a suspect."""
        if alone:
            return next((host for host in self._staff.hosts if host.is_idle), None)
        open_hosts = [host for host in self._staff.hosts if host.free_slots > 0]
        return min(open_hosts, key=lambda host: host.load, default=None)

    def _refuse(self, key: int, error: InvalidInput) -> None:
        self.release(key)
        # Later, because the caller is inside dispatch and its books are not written yet.
        asyncio.get_running_loop().call_soon(self._events.on_done, key, Failed(error))

    def _result(self, done: ItemDone, dispatched_us: int) -> Result:
        timing = Timing(
            batch=max(0, done.began_us - dispatched_us),
            prepare=done.prepare_us,
            run=done.run_us,
            interpret=done.interpret_us,
        )
        return Result(
            data=done.data,
            model=self._manifest.name,
            version=self._manifest.version,
            attachments=done.attachments,
            timing=timing,
            batch_size=done.batch_size,
            busy_us=done.busy_us,
        )
