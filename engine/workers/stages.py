"""The three stages inside a worker, each on its own thread(s), joined by bounded queues.

::

    reader ──> prepare threads ──> run (main thread, owns the session) ──> interpret and send
       └──────────── order of batches ────────────┘

While batch n runs, n + 1 is prepared and n - 1 interpreted. Batches run in the order of arrival
whatever their preparation takes. With several pipelines on an accelerator, one per stream, each
has a run thread, and they take batches from the same queue.

Where the process has one core for everything, nothing would overlap: each switch between threads
would only empty the cache for the network (3 % of CenterFace, measured). There the run thread does
all three stages, one batch after the other.

An error stays with its item: ``InvalidInput`` is told to the caller, anything else becomes a
reference that the log line with the traceback carries too. When a batch fails as a whole its items
run again one by one, once, so that the one at fault fails alone.
"""

from __future__ import annotations

import logging
import threading
import time
import weakref
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from queue import Queue
from typing import Any, cast

import msgspec

from engine.errors import InternalError, InvalidInput
from engine.pipeline import Output, Pipeline
from engine.types import Attachment, AttachmentKind
from engine.workers.channel import UP_OVERHEAD_BYTES, encode_message
from engine.workers.lifeline import guarded
from engine.workers.messages import BatchRan, Fault, ItemDone, ItemFailed, RunBatch, Task
from engine.workers.slab import SlabReader

logger = logging.getLogger(__name__)

MAX_ATTACHMENT_META_BYTES = 64 * 1024  # of an attachment, as on the wire
MAX_ANSWER_WAIT_S = 0.001  # of a finished answer, for those of its batch


@dataclass(slots=True, kw_only=True)
class _Item:
    task: Task
    options: bytes = b""
    prepared: Any = None
    raw: Any = None
    is_failed: bool = False
    is_withdrawn: bool = False
    began_us: int = 0
    prepare_us: int = 0
    run_us: int = 0
    batch_size: int = 0


class _Batch:
    """A batch on its way through the stages; all on the run thread unless it ``overlaps``."""

    def __init__(self, message: RunBatch, *, overlaps: bool) -> None:
        self.id = message.batch
        self.overlaps = overlaps
        self.items = [_Item(task=task) for task in message.tasks]
        self.ran_together = 0
        self.run_us = 0
        self.busy_us = 0  # if that is longer than it ran
        self._unprepared = len(self.items)
        self._lock = threading.Lock()
        self._is_prepared = threading.Event()

    def note_prepared(self) -> None:
        with self._lock:
            self._unprepared -= 1
            if self._unprepared == 0:
                self._is_prepared.set()

    def wait_prepared(self) -> None:
        self._is_prepared.wait()


class _Withdrawn(Exception):
    """Nobody waits for the item any more."""


class Stages:
    """Runs a pipeline over batches. ``submit`` and ``finish`` are the reader thread's, ``run`` is
    the main thread's; ``send`` is called by one thread at a time. ``overlaps`` is asked for each
    batch whether its stages shall overlap with those of others.

    ``pipelines`` are equal but for their sessions: the first prepares and interprets for all.

    The queues hold what the host may have outstanding, so ``submit`` blocks only if it sends more.
    """

    def __init__(
        self,
        pipelines: Sequence[Pipeline],
        slab: SlabReader,
        send: Callable[[bytes], None],
        *,
        overlaps: Callable[[], bool],
        max_batch_size: int,
        prefetch_count: int,
        prepare_threads: int,
        max_output_bytes: int,
    ) -> None:
        outstanding = len(pipelines) + prefetch_count
        self._pipelines = tuple(pipelines)
        self._slab = slab
        self._send = send
        self._sending = threading.Lock()
        self._overlaps = overlaps
        self._prepare_threads = prepare_threads
        self._max_output_bytes = max_output_bytes
        self._unprepared: Queue[tuple[_Batch, _Item]] = Queue(outstanding * max_batch_size)
        self._batches: Queue[_Batch | None] = Queue(outstanding)
        self._answers: Queue[_Batch | ItemFailed | None] = Queue(1 + max_batch_size)
        self._items: dict[int, _Item] = {}  # unanswered, by key; single operations only: threads

    def submit(self, message: RunBatch) -> None:
        """Take a batch in; its items are prepared in order."""
        batch = _Batch(message, overlaps=self._overlaps())
        self._items.update((item.task.key, item) for item in batch.items)
        self._batches.put(batch)
        if batch.overlaps:
            for item in batch.items:
                self._unprepared.put((batch, item))

    def withdraw(self, key: int) -> None:
        """Leave out what has not been done for this item; the reader thread's."""
        item = self._items.get(key)
        if item is not None:
            item.is_withdrawn = True

    def finish(self) -> None:
        """Let ``run`` return once everything submitted is answered."""
        for _ in self._pipelines:
            self._batches.put(None)

    def run(self) -> None:
        """Run batches until ``finish``; every answer is sent when this returns."""
        stages = [("prepare", self._prepare_forever)] * self._prepare_threads
        for name, stage in [*stages, ("interpret", self._answer_forever)]:
            threading.Thread(target=guarded(stage), name=name, daemon=True).start()
        others: list[threading.Thread] = []
        for each in self._pipelines[1:]:
            run = guarded(partial(self._run_forever, each))
            others.append(threading.Thread(target=run, name="run", daemon=True))
            others[-1].start()
        self._run_forever(self._pipelines[0])
        for thread in others:
            thread.join()
        self._answers.put(None)
        self._answers.join()

    # prepare

    def _prepare_forever(self) -> None:
        while True:
            batch, item = self._unprepared.get()
            self._try_prepare(item)
            batch.note_prepared()

    def _try_prepare(self, item: _Item) -> None:
        try:
            _check_wanted(item)
            self._prepare(item)
        except Exception as error:  # noqa: BLE001 - an item's fault, logged in _fail
            self._fail(item, "prepare", error)

    def _prepare(self, item: _Item) -> None:
        began = time.monotonic_ns()
        item.began_us = began // 1000
        span = item.task.span
        self._check_span(item)
        item.options = self._slab.options(span)
        payload = self._slab.payload(span)
        owner = weakref.ref(payload.obj)
        item.prepared = self._pipelines[0].prepare(payload, self._slab.meta(span), item.options)
        self._check_span(item)
        del payload
        if owner() is not None:  # it would soon read another item's bytes
            raise RuntimeError("prepare kept a reference to its payload: copy the data")
        item.prepare_us = _us_since(began)

    def _check_span(self, item: _Item) -> None:
        if not self._slab.is_valid(item.task.span):
            raise RuntimeError(f"slab extent was reused: {item.task.span}")

    # run

    def _run_forever(self, pipeline: Pipeline) -> None:
        ran_at = time.monotonic_ns()  # when the newest batch had run
        while True:
            is_idle = self._batches.empty()
            batch = self._batches.get()
            if batch is None:
                return
            if batch.overlaps:
                batch.wait_prepared()
                self._run_batch(pipeline, batch)
                self._answers.put(batch)
                continue
            began = time.monotonic_ns() if is_idle else ran_at
            for item in batch.items:
                self._try_prepare(item)
            self._run_batch(pipeline, batch)
            ran_at = time.monotonic_ns()
            if batch.ran_together:
                batch.busy_us = (ran_at - began) // 1000
            self._answer_batch(batch)

    def _run_batch(self, pipeline: Pipeline, batch: _Batch) -> None:
        for item in batch.items:
            if item.is_withdrawn and not item.is_failed:
                self._fail(item, "run", _Withdrawn())
        items = [item for item in batch.items if not item.is_failed]
        if not items:
            return
        try:
            batch.run_us = self._run_items(pipeline, items)
            batch.ran_together = len(items)
        except Exception as error:  # noqa: BLE001 - logged here or in _fail
            if len(items) == 1:
                self._fail(items[0], "run", error)
                return
            logger.warning("a batch of %d failed, its items run singly: %s", len(items), error)
            for item in items:
                self._run_alone(pipeline, item)

    def _run_alone(self, pipeline: Pipeline, item: _Item) -> None:
        try:
            self._run_items(pipeline, [item])
        except Exception as error:  # noqa: BLE001 - an item's fault, logged in _fail
            self._fail(item, "run", error)

    def _run_items(self, pipeline: Pipeline, items: Sequence[_Item]) -> int:
        began = time.monotonic_ns()
        raws = pipeline.run([item.prepared for item in items])
        run_us = _us_since(began)
        if len(raws) != len(items):
            raise RuntimeError(f"run returned {len(raws)} answers for {len(items)} items")
        for item, raw in zip(items, raws, strict=True):
            item.raw, item.run_us, item.batch_size = raw, run_us, len(items)
        return run_us

    # interpret and send

    def _answer_forever(self) -> None:
        while (finished := self._answers.get()) is not None:
            if isinstance(finished, ItemFailed):
                self._tell([encode_message(finished, UP_OVERHEAD_BYTES)])
            else:
                self._answer_batch(finished)
            self._answers.task_done()
        self._answers.task_done()

    def _answer_batch(self, batch: _Batch) -> None:
        """Send what became of a batch: together, so that the host wakes once, unless that would
        keep the first answers waiting."""
        ran = BatchRan(batch.id, batch.ran_together, batch.run_us)
        unsent = [encode_message(ran, UP_OVERHEAD_BYTES)]
        send_at = time.monotonic() + MAX_ANSWER_WAIT_S
        for item in batch.items:
            if item.is_failed:
                continue  # told when it failed
            self._items.pop(item.task.key, None)
            unsent.append(self._answer(batch, item))
            if time.monotonic() >= send_at:
                self._tell(unsent)
                unsent.clear()
        if unsent:
            self._tell(unsent)

    def _tell(self, messages: list[bytes]) -> None:
        with self._sending:
            self._send(b"".join(messages))

    def _answer(self, batch: _Batch, item: _Item) -> bytes:
        """The message about an item that ran."""
        try:
            _check_wanted(item)
            return self._interpret(batch, item)
        except Exception as error:  # noqa: BLE001 - an item's fault, logged in _failure
            return encode_message(_failure(item, "interpret", error), UP_OVERHEAD_BYTES)

    def _interpret(self, batch: _Batch, item: _Item) -> bytes:
        began = time.monotonic_ns()
        output = self._pipelines[0].interpret(item.prepared, item.raw, item.options)
        _check_output(output)
        size = output_bytes(output)
        if size > self._max_output_bytes:
            limit = self._max_output_bytes
            raise InvalidInput(f"the answer has {size} bytes, max_output_bytes is {limit}")
        done = ItemDone(
            key=item.task.key,
            data=output.data,
            attachments=output.attachments,
            began_us=item.began_us,
            prepare_us=item.prepare_us,
            run_us=item.run_us,
            busy_us=batch.busy_us or item.run_us,
            interpret_us=_us_since(began),
            batch_size=item.batch_size,
        )
        return encode_message(done, self._max_output_bytes + UP_OVERHEAD_BYTES)

    def _fail(self, item: _Item, stage: str, error: Exception) -> None:
        item.is_failed = True
        self._items.pop(item.task.key, None)
        self._answers.put(_failure(item, stage, error))


def _check_wanted(item: _Item) -> None:
    if item.is_withdrawn:
        raise _Withdrawn


def output_bytes(output: Output) -> int:
    """What an answer weighs on the control socket."""
    parts = sum(len(part.meta) + len(part.payload) for part in output.attachments)
    return len(output.data) + parts


def _check_output(output: Output) -> None:
    """A pipeline may be anybody's: its mistake must fail the item, not the host's decoder, nor the
    connection of a client that cannot read what it got."""
    _check_json("data", output.data)
    for attachment in output.attachments:
        if not isinstance(attachment, Attachment):
            raise TypeError(f"attachments must be Attachment, not {type(attachment).__name__}")
        if not isinstance(attachment.kind, AttachmentKind):
            raise TypeError(f"an attachment's kind must be AttachmentKind, not {attachment.kind!r}")
        _check_bytes("an attachment's payload", attachment.payload)
        _check_bytes("an attachment's meta", attachment.meta)
        if len(attachment.meta) > MAX_ATTACHMENT_META_BYTES:
            raise ValueError(f"an attachment's meta is over {MAX_ATTACHMENT_META_BYTES} bytes")
        if attachment.meta:
            _check_json("an attachment's meta", attachment.meta)


def _check_bytes(name: str, part: object) -> None:
    if not isinstance(part, bytes):
        raise TypeError(f"{name} must be bytes, not {type(part).__name__}")


def _check_json(name: str, part: object) -> None:
    _check_bytes(name, part)
    try:
        # Not to msgspec.Raw, which would let invalid UTF-8 pass. 7 us for ten faces.
        msgspec.json.decode(cast(bytes, part))
    except (msgspec.MsgspecError, RecursionError) as error:
        raise ValueError(f"{name} is not valid JSON (NaN is not, either): {error}") from error


def _failure(item: _Item, stage: str, error: Exception) -> ItemFailed:
    if isinstance(error, InvalidInput):
        return ItemFailed(item.task.key, Fault.INVALID_INPUT, error.detail[:4096])
    if isinstance(error, _Withdrawn):
        return ItemFailed(item.task.key, Fault.WITHDRAWN, "")
    reference = InternalError().reference
    logger.error("%s failed, reference %s", stage, reference, exc_info=error)
    return ItemFailed(item.task.key, Fault.INTERNAL, reference)


def _us_since(began_ns: int) -> int:
    return (time.monotonic_ns() - began_ns) // 1000
