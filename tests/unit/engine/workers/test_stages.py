"""The stages on real threads and a real slab, with a list in place of the control socket."""

from __future__ import annotations

import itertools
import json
import threading
import time
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import msgspec
import pytest

from engine.errors import InvalidInput
from engine.pipeline import Output
from engine.types import Attachment, AttachmentKind
from engine.workers import stages
from engine.workers.channel import MessageBuffer
from engine.workers.messages import BatchRan, Fault, ItemDone, ItemFailed, RunBatch, Task, Up
from engine.workers.slab import Slab, SlabReader
from engine.workers.stages import Stages
from tests.fakes.pipelines import Echo

pytestmark = pytest.mark.unit


class Harness:
    """Writes items, runs the stages to the end, and keeps what they sent."""

    def __init__(
        self,
        pipeline: Echo,
        *others: Echo,
        prepare_threads: int = 1,
        limit: int = 1000,
        overlaps: Sequence[bool] = (True,),  # for one batch after the other, again and again
    ) -> None:
        self.slab = Slab(1 << 16)
        self.sent: list[Up] = []
        self.num_sends = 0
        self.stages = Stages(
            [pipeline, *others],
            SlabReader(self.slab.fd),
            self._send,
            overlaps=partial(next, itertools.cycle(overlaps)),
            max_batch_size=4,
            prefetch_count=1,
            prepare_threads=prepare_threads,
            max_output_bytes=limit,
        )
        self._num_batches = 0
        self._keys = 0

    def batch(self, *payloads: bytes) -> RunBatch:
        self._num_batches += 1
        tasks = []
        for payload in payloads:
            written = self.slab.try_write(payload, b"", b"")
            assert written is not None
            tasks.append(Task(self._keys, written[1]))
            self._keys += 1
        return RunBatch(self._num_batches, tuple(tasks))

    def run(self, *batches: RunBatch) -> list[Up]:
        reader = threading.Thread(target=self._read, args=(batches,))
        reader.start()
        self.stages.run()
        reader.join()
        self.slab.close()
        return self.sent

    def _read(self, batches: Sequence[RunBatch]) -> None:
        for batch in batches:
            self.stages.submit(batch)
        self.stages.finish()

    def _send(self, encoded: bytes) -> None:
        self.num_sends += 1
        for body in MessageBuffer(len(encoded)).feed(encoded):
            self.sent.append(msgspec.msgpack.decode(body, type=Up))


class Faulty(Echo):
    """``run`` raises when ``is_bad`` likes one of the payload sums."""

    def __init__(self, is_bad: Callable[[int], bool]) -> None:
        self.is_bad = is_bad
        self.runs: list[int] = []

    def run(self, batch: Sequence[Any]) -> Sequence[Any]:
        self.runs.append(len(batch))
        if any(self.is_bad(item["sum"]) for item in batch):
            raise RuntimeError("bad item")
        return list(batch)


MODES = pytest.mark.parametrize("overlaps", [(True,), (False,), (True, False, False)])


@MODES
def test_batches_are_answered_in_order_with_their_size(overlaps: Sequence[bool]) -> None:
    harness = Harness(Echo(), prepare_threads=3, overlaps=overlaps)
    batches = [harness.batch(bytes([n]), bytes([n, n])) for n in range(20)]
    sent = harness.run(*batches)
    ran = [each.batch for each in sent if isinstance(each, BatchRan)]
    done = [each for each in sent if isinstance(each, ItemDone)]
    if len(set(overlaps)) > 1:  # who overlaps is answered by another thread
        ran.sort()
        done.sort(key=lambda each: each.key)
    assert ran == list(range(1, 21))
    assert [each.key for each in done] == list(range(40))
    assert [json.loads(each.data)["sum"] for each in done[:4]] == [0, 0, 1, 2]
    assert {each.batch_size for each in done} == {2}


@pytest.mark.parametrize(("wait_s", "num_sends"), [(60.0, 1), (0.0, 3)])
def test_answers_of_a_batch_leave_together_unless_the_first_would_wait(
    monkeypatch: pytest.MonkeyPatch, wait_s: float, num_sends: int
) -> None:
    monkeypatch.setattr(stages, "MAX_ANSWER_WAIT_S", wait_s)
    harness = Harness(Echo())
    assert len(harness.run(harness.batch(b"a", b"b", b"c"))) == 4
    assert harness.num_sends == num_sends


class Diary(Echo):
    """Notes what it does, and on which thread."""

    def __init__(self) -> None:
        self.steps: list[str] = []
        self.threads: set[str] = set()

    def prepare(self, payload: memoryview, meta: bytes, options: bytes) -> dict[str, int]:
        self._note("prepare")
        return super().prepare(payload, meta, options)

    def run(self, batch: Sequence[Any]) -> Sequence[Any]:
        self._note("run")
        time.sleep(0.001)
        return super().run(batch)

    def interpret(self, prepared: Any, raw: Any, options: bytes) -> Output:
        self._note("interpret")
        return super().interpret(prepared, raw, options)

    def _note(self, step: str) -> None:
        self.steps.append(step)
        self.threads.add(threading.current_thread().name)


def test_on_one_core_a_batch_is_answered_before_the_next_is_begun_on_one_thread() -> None:
    pipeline = Diary()
    harness = Harness(pipeline, overlaps=(False,))
    sent = harness.run(harness.batch(b"a", b"b"), harness.batch(b"c", b"d"))
    assert pipeline.steps == 2 * ["prepare", "prepare", "run", "interpret", "interpret"]
    assert len(pipeline.threads) == 1
    assert harness.num_sends == 2
    for done in (each for each in sent if isinstance(each, ItemDone)):
        assert done.busy_us >= done.run_us + done.prepare_us


def test_where_stages_overlap_a_batch_keeps_its_worker_as_long_as_it_runs() -> None:
    harness = Harness(Diary())
    sent = harness.run(harness.batch(b"a", b"b"), harness.batch(b"c"))
    done = [each for each in sent if isinstance(each, ItemDone)]
    assert [each.busy_us for each in done] == [each.run_us for each in done]


@MODES
def test_one_item_that_breaks_a_batch_fails_alone(overlaps: Sequence[bool]) -> None:
    pipeline = Faulty(lambda total: total == 2)
    harness = Harness(pipeline, overlaps=overlaps)
    sent = harness.run(harness.batch(b"\x01", b"\x02", b"\x03"))
    assert pipeline.runs == [3, 1, 1, 1]
    assert [each.key for each in sent if isinstance(each, ItemDone)] == [0, 2]
    (failed,) = [each for each in sent if isinstance(each, ItemFailed)]
    assert (failed.key, failed.fault) == (1, Fault.INTERNAL)
    assert BatchRan(1, 0, 0) in sent  # they did not run together: no measurement


def test_a_single_item_is_not_run_twice() -> None:
    pipeline = Faulty(lambda total: True)
    harness = Harness(pipeline)
    harness.run(harness.batch(b"\x01"))
    assert pipeline.runs == [1]


@MODES
def test_an_item_whose_extent_was_reused_is_not_read(overlaps: Sequence[bool]) -> None:
    harness = Harness(Echo(), overlaps=overlaps)
    (task,) = harness.batch(b"\x01").tasks
    stale = RunBatch(1, (Task(task.key, task.span._replace(generation=99)),))
    assert {type(each) for each in harness.run(stale)} == {ItemFailed, BatchRan}


@pytest.mark.parametrize("answers", [[], [{}, {}]], ids=["too few answers", "too many answers"])
def test_run_must_answer_every_item(answers: list[Any]) -> None:
    class Miscounting(Echo):
        def run(self, batch: Sequence[Any]) -> Sequence[Any]:
            return answers

    harness = Harness(Miscounting())
    sent = harness.run(harness.batch(b"\x01"))
    assert [each.fault for each in sent if isinstance(each, ItemFailed)] == [Fault.INTERNAL]


def test_an_answer_that_is_not_bytes_fails_its_item() -> None:
    class Sloppy(Echo):
        def interpret(self, prepared: Any, raw: Any, options: bytes) -> Output:
            return Output(data="text")  # type: ignore[arg-type]

    harness = Harness(Sloppy())
    sent = harness.run(harness.batch(b"\x01"))
    assert [each.fault for each in sent if isinstance(each, ItemFailed)] == [Fault.INTERNAL]


class Answering(Echo):
    """Answers the second item of a batch with ``output``, the others as ever."""

    def __init__(self, output: Output) -> None:
        self.output = output

    def interpret(self, prepared: Any, raw: Any, options: bytes) -> Output:
        return self.output if raw["sum"] == 2 else super().interpret(prepared, raw, options)


BAD_JSON = {
    "broken": b"{not json",
    "NaN": b'{"score":NaN}',
    "empty": b"",
    "not UTF-8": b'"\xff"',
    "two values": b"{}{}",
    "nested without end": b"[" * 5000 + b"]" * 5000,
}


def output_with(**changes: Any) -> Output:
    sound = {"kind": AttachmentKind.TENSORS, "meta": b"{}", "payload": b""}
    return Output(data=b"{}", attachments=(Attachment(**{**sound, **changes}),))


@pytest.mark.parametrize(
    "output",
    [
        *(Output(data=data) for data in BAD_JSON.values()),
        *(output_with(meta=meta) for name, meta in BAD_JSON.items() if name != "empty"),
        output_with(meta=b'"' + b"x" * 65536 + b'"'),
        output_with(kind=7),
        output_with(payload="text"),
    ],
)
def test_an_answer_that_nobody_can_read_fails_its_item_alone(
    output: Output, caplog: pytest.LogCaptureFixture
) -> None:
    harness = Harness(Answering(output), limit=100_000)
    sent = harness.run(harness.batch(b"\x01", b"\x02", b"\x03"))
    assert [each.key for each in sent if isinstance(each, ItemDone)] == [0, 2]
    (failed,) = [each for each in sent if isinstance(each, ItemFailed)]
    assert (failed.key, failed.fault) == (1, Fault.INTERNAL)
    assert failed.detail in caplog.text


def test_an_attachment_may_have_no_meta() -> None:
    harness = Harness(Answering(output_with(meta=b"")))
    assert not [e for e in harness.run(harness.batch(b"\x02")) if isinstance(e, ItemFailed)]


def test_an_answer_over_the_limit_names_the_limit() -> None:
    harness = Harness(Echo(), limit=10)
    sent = harness.run(harness.batch(b"\x01"))
    (failed,) = [each for each in sent if isinstance(each, ItemFailed)]
    assert failed.fault is Fault.INVALID_INPUT
    assert "max_output_bytes is 10" in failed.detail


def test_invalid_input_keeps_its_words() -> None:
    class Picky(Echo):
        def prepare(self, payload: memoryview, meta: bytes, options: bytes) -> dict[str, int]:
            raise InvalidInput("no picture")

    harness = Harness(Picky())
    sent = harness.run(harness.batch(b"\x01"))
    assert ItemFailed(0, Fault.INVALID_INPUT, "no picture") in sent


class Side(Echo):
    """Runs only beside the other: each waits until both have begun."""

    def __init__(self, meeting: threading.Barrier) -> None:
        self._meeting = meeting
        self.threads: set[str] = set()

    def run(self, batch: Sequence[Any]) -> Sequence[Any]:
        self._meeting.wait(timeout=10.0)
        self.threads.add(threading.current_thread().name)
        return list(batch)


def test_two_streams_run_two_batches_side_by_side_each_on_its_own_thread() -> None:
    meeting = threading.Barrier(2)
    first, second = Side(meeting), Side(meeting)
    harness = Harness(first, second)
    sent = harness.run(*(harness.batch(bytes([n])) for n in range(8)))
    assert sorted(each.key for each in sent if isinstance(each, ItemDone)) == list(range(8))
    assert sorted(each.batch for each in sent if isinstance(each, BatchRan)) == list(range(1, 9))
    assert (len(first.threads), len(second.threads)) == (1, 1)
    assert first.threads != second.threads
