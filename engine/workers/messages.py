"""What a host and its worker say to each other over the control socket.

Down: ``Start`` once, then ``RunBatch`` and ``Withdraw``, then perhaps ``Finish``. Up: ``Ready`` or
``StartFailed`` once, then for each batch ``BatchRan`` and one ``ItemDone`` or ``ItemFailed`` per
task. Payloads travel in the slab; answers travel here, because a retry needs its slab extent
unchanged.
"""

from __future__ import annotations

from enum import Enum

import msgspec

from engine.config import GpuConfig
from engine.log_format import LogFormat
from engine.manifest import Manifest
from engine.types import Attachment
from engine.workers.slab import Span


class Start(msgspec.Struct, frozen=True, tag=0, array_like=True, kw_only=True):
    """Everything a worker needs to load its model.

    ``measured_run_s`` is what an earlier worker of the slot measured at warm-up; with it, the
    worker warms up for a single item only, because somebody waits for its answers.
    """

    manifest: Manifest
    execution_providers: tuple[str, ...]
    threads: int
    prepare_threads: int
    max_batch_size: int
    prefetch_count: int
    max_output_bytes: int
    log_level: int
    log_format: LogFormat
    gpu: GpuConfig
    cuda_streams: int
    measured_run_s: dict[int, float] = {}


class Task(msgspec.Struct, frozen=True, array_like=True):
    """One item of a batch: its key and where it lies."""

    key: int
    span: Span


class RunBatch(msgspec.Struct, frozen=True, tag=1, array_like=True):
    """Prepare, run and interpret these together; ``batch`` is unique per worker process."""

    batch: int
    tasks: tuple[Task, ...]


class Withdraw(msgspec.Struct, frozen=True, tag=8, array_like=True):
    """Nobody waits for this item any more: leave out what has not been done, and answer it with
    ``ItemFailed``. Unknown and answered keys are ignored."""

    key: int


class Finish(msgspec.Struct, frozen=True, tag=2, array_like=True):
    """Answer what you hold, then exit with code 0."""


class Ready(msgspec.Struct, frozen=True, tag=3, array_like=True):
    """The model is loaded and warm; ``warmup_run_s`` is seconds per batch size."""

    providers: tuple[str, ...]
    warmup_run_s: dict[int, float]


class StartFailed(msgspec.Struct, frozen=True, tag=4, array_like=True):
    """The model cannot be loaded; ``detail`` says what is missing and how to fix it."""

    detail: str


class BatchRan(msgspec.Struct, frozen=True, tag=5, array_like=True):
    """The batch left the run stage: there is room for another.

    ``size`` items ran together for ``run_us``; 0 when none did (each failed, or ran on its own).
    """

    batch: int
    size: int
    run_us: int


class ItemDone(msgspec.Struct, frozen=True, tag=6, array_like=True, kw_only=True):
    """An answer. ``began_us`` is on the monotonic clock, which all processes share; ``busy_us`` is
    how long its batch kept the next one waiting."""

    key: int
    data: bytes
    attachments: tuple[Attachment, ...]
    began_us: int
    prepare_us: int
    run_us: int
    busy_us: int
    interpret_us: int
    batch_size: int


class Fault(Enum):
    """Whose fault a failed item is."""

    INVALID_INPUT = 0  # ``detail`` is for the caller
    WITHDRAWN = 2  # nobody's
    INTERNAL = 1  # ``detail`` is the reference under which the worker logged the traceback


class ItemFailed(msgspec.Struct, frozen=True, tag=7, array_like=True):
    """The item could not be answered."""

    key: int
    fault: Fault
    detail: str


Down = Start | RunBatch | Withdraw | Finish
Up = Ready | StartFailed | BatchRan | ItemDone | ItemFailed
