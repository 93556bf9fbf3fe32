"""The library over real workers and ONNX Runtime."""

from __future__ import annotations

import asyncio
import gc
import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import AsyncIterator, Iterator
from concurrent.futures import CancelledError
from pathlib import Path
from queue import Queue
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from engine import load_model
from engine.api import Model
from engine.errors import InvalidInput, Overloaded, StartupError, Unavailable
from engine.manifest import Manifest
from tests.fakes.networks import save_add_and_negate, save_matmul
from tests.fakes.pools import child_pids, nothing_left

pytestmark = pytest.mark.integration

WEIGHTS = np.arange(12, dtype=np.float32).reshape(4, 3)


def rows(count: int, value: float = 1.0) -> NDArray[np.float32]:
    return np.full((count, 4), value, np.float32)


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Model]:
    path = save_matmul(tmp_path_factory.mktemp("model") / "matmul.onnx")
    with nothing_left(), load_model(path, max_batch_size=8) as loaded:
        yield loaded
        del loaded


def scripted(**options: Any) -> Manifest:
    return Manifest(name="m", pipeline="tests.fakes.pipelines:build_scripted", options=options)


def test_run_answers_with_the_output(model: Model) -> None:
    np.testing.assert_array_equal(model.run(rows(2)), rows(2) @ WEIGHTS)
    np.testing.assert_array_equal(model.run({"x": rows(1)}), rows(1) @ WEIGHTS)


def test_a_model_shows_what_it_is(tmp_path: Path) -> None:
    with load_model(save_matmul(tmp_path / "matmul.onnx"), max_batch_size=4) as model:
        assert repr(model) == "<Model matmul version 1, max_batch_size 4, loaded>"
        np.testing.assert_array_equal(model.run(rows(9)), rows(9) @ WEIGHTS)  # never divided
    assert repr(model) == "<Model matmul version 1, max_batch_size 4, closed>"


def test_a_single_run_does_not_wait_for_company(tmp_path: Path) -> None:
    path = save_matmul(tmp_path / "matmul.onnx")
    with load_model(path, batch_timeout_millis=5000.0) as slow:
        began = time.monotonic()
        slow.run(rows(1))
        assert time.monotonic() - began < 2.0


def test_the_runtime_stays_out_of_this_process(model: Model) -> None:
    model.run(rows(1))
    assert model.statistics().providers == ("CPUExecutionProvider",)
    code = "import sys, engine.api; assert 'onnxruntime' not in sys.modules"
    subprocess.run([sys.executable, "-c", code], check=True, timeout=30)


def test_several_outputs_come_by_name(tmp_path: Path) -> None:
    with load_model(save_add_and_negate(tmp_path / "n.onnx")) as two:
        answer = two.run({"a": rows(1), "b": rows(1, 2.0)})
        assert {name: array[0, 0] for name, array in answer.items()} == {
            "sum": 3.0,
            "negative": -1.0,
        }


def test_many_threads_get_their_own_answers_in_batches(model: Model) -> None:
    before = model.statistics()
    wrong: list[float] = []

    def work(number: int) -> None:
        futures = [model.submit(rows(1, number + step / 64)) for step in range(50)]
        for step, future in enumerate(futures):
            expected = rows(1, number + step / 64) @ WEIGHTS
            if not np.array_equal(future.result(), expected):
                wrong.append(number)

    threads = [threading.Thread(target=work, args=(number,)) for number in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    after = model.statistics()
    assert wrong == []
    assert after.results - before.results == 200
    assert after.batches - before.batches < 200
    assert after.in_flight == 0


async def test_async_run_and_stream_keep_the_order(model: Model) -> None:
    np.testing.assert_array_equal(await model.async_run(rows(1)), rows(1) @ WEIGHTS)
    answers = [answer async for answer in model.stream(rows(1, n) for n in range(100))]
    assert [answer[0, 1] for answer in answers] == [22.0 * n for n in range(100)]


async def test_a_stream_answers_before_its_source_ends(model: Model) -> None:
    first_is_answered = asyncio.Event()

    async def source() -> AsyncIterator[NDArray[Any]]:
        yield rows(1, 1.0)
        await first_is_answered.wait()
        yield rows(1, 2.0)

    values = []
    async with asyncio.timeout(10):
        async for answer in model.stream(source()):
            first_is_answered.set()
            values.append(answer[0, 1])
    assert values == [22.0, 44.0]


async def test_a_stream_reads_at_most_so_far_ahead() -> None:
    reads = 0

    def source() -> Iterator[bytes]:
        nonlocal reads
        for _ in range(100):
            reads += 1
            yield b"x"

    with load_model(scripted(run_s=0.2), max_batch_size=1) as slow:
        stream = slow.stream(source(), look_ahead=3)
        async for _ in stream:
            break
        assert reads <= 6
        await stream.aclose()  # type: ignore[attr-defined]


async def test_an_error_of_the_source_ends_the_stream_after_what_came_before(model: Model) -> None:
    def source() -> Iterator[NDArray[Any]]:
        yield rows(1)
        raise OSError("camera unplugged")

    stream = model.stream(source())
    await anext(stream)
    with pytest.raises(OSError, match="camera unplugged"):
        await anext(stream)


async def test_an_item_at_fault_ends_the_stream_in_its_place(model: Model) -> None:
    stream = model.stream([rows(1), np.zeros((1, 5), np.float32), rows(1)])
    await anext(stream)
    with pytest.raises(InvalidInput, match=r"wants \[n, 4\]"):
        await anext(stream)


def test_callbacks_get_the_answer_or_the_error(model: Model) -> None:
    results: Queue[Any] = Queue()
    errors: Queue[BaseException] = Queue()
    model.submit(rows(1), on_result=results.put, on_error=errors.put)
    model.submit(np.zeros((1, 5), np.float32), on_result=results.put, on_error=errors.put)
    np.testing.assert_array_equal(results.get(timeout=10.0), rows(1) @ WEIGHTS)
    assert isinstance(errors.get(timeout=10.0), InvalidInput)
    assert results.empty()
    assert errors.empty()


def test_inputs_of_other_types_are_refused(model: Model) -> None:
    with pytest.raises(TypeError, match="this model takes arrays"):
        model.run(b"picture")
    with pytest.raises(TypeError, match="must be an array"):
        model.run([1.0, 2.0])  # type: ignore[arg-type]


def test_a_pipeline_gives_bytes_a_meaning() -> None:
    with load_model(scripted(), pipeline="tests.fakes.pipelines:build_echo") as echo:
        assert echo.run(b"\x01\x02") == {"bytes": 2, "sum": 3}
        assert echo.run(memoryview(b"\x05")) == {"bytes": 1, "sum": 5}  # type: ignore[arg-type]


def test_submit_waits_while_too_much_is_unanswered() -> None:
    with load_model(scripted(run_s=0.05), max_concurrent_requests=2, max_batch_size=1) as slow:
        began = time.monotonic()
        futures = [slow.submit(b"x") for _ in range(6)]
        assert time.monotonic() - began > 0.15
        assert all(future.result()["bytes"] == 1 for future in futures)


def test_a_callback_may_submit_but_not_wait_for_itself() -> None:
    refused = threading.Event()

    with load_model(scripted(run_s=0.02), max_concurrent_requests=1) as slow:

        def submit_more(_: Any) -> None:
            slow.submit(b"second")  # this callback's item may be done: one more fits
            try:
                slow.submit(b"third")
            except Overloaded:
                refused.set()

        slow.submit(b"first", on_result=submit_more)
        assert refused.wait(10.0)


def test_a_cancelled_future_withdraws_its_item() -> None:
    with load_model(scripted(run_s=0.2), max_batch_size=1) as slow:
        futures = [slow.submit(b"x") for _ in range(5)]
        assert slow.statistics().in_flight == 5
        assert futures[4].cancel()
        with pytest.raises(CancelledError):
            futures[4].result()
        assert futures[3].result()["bytes"] == 1
        statistics = slow.statistics()
        assert (statistics.results, statistics.cancelled) == (4, 1)


async def test_cancelling_async_run_withdraws_its_item() -> None:
    with load_model(scripted(run_s=0.3), max_batch_size=1) as slow:
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(slow.async_run(b"x"), 0.05)
        assert slow.statistics().cancelled == 1


def test_closing_finishes_what_was_submitted() -> None:
    with nothing_left():
        model = load_model(scripted(run_s=0.05), max_batch_size=2)
        futures = [model.submit(b"x") for _ in range(6)]
        model.close()
        assert all(future.done() for future in futures)
        assert all(future.result()["bytes"] == 1 for future in futures)
        model.close()
        with pytest.raises(Unavailable, match="closed"):
            model.run(b"x")
        with pytest.raises(Unavailable, match="closed"):
            model.statistics()
        del model


def test_a_forgotten_model_closes_itself() -> None:
    with nothing_left():
        model = load_model(scripted())
        assert model.run(b"x")["bytes"] == 1
        del model
        gc.collect()


@pytest.mark.parametrize("content", [b"not a model", b""])
def test_a_damaged_file_is_explained_and_leaves_nothing(content: bytes, tmp_path: Path) -> None:
    path = tmp_path / "damaged.onnx"
    path.write_bytes(content)
    with nothing_left(), pytest.raises(StartupError, match=r"damaged\.onnx cannot be loaded"):
        load_model(path)


def test_a_killed_worker_costs_no_answer() -> None:
    with load_model(scripted(run_s=0.1), max_batch_size=1) as model:
        futures = [model.submit(b"x") for _ in range(4)]
        time.sleep(0.05)
        for pid in child_pids():
            os.kill(pid, signal.SIGKILL)
        assert [future.result()["bytes"] for future in futures] == [1] * 4
        assert model.statistics().worker_restarts == 1


SCRIPT = """
import json, sys
import numpy as np
from engine import load_model

model = load_model(sys.argv[1])
print(json.dumps(model.run(np.ones((1, 4), np.float32)).tolist()), flush=True)
future = model.submit(np.ones((1, 4), np.float32))
if sys.argv[2] == "wait":
    import time
    time.sleep(60)
"""


def test_a_plain_script_ends_by_itself(tmp_path: Path) -> None:
    """No ``if __name__ == "__main__"``, no close: the worker does not import the script again."""
    script = tmp_path / "script.py"
    script.write_text(SCRIPT)
    command = [sys.executable, str(script), str(save_matmul(tmp_path / "n.onnx")), "end"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=30, env=environment())
    assert (done.returncode, done.stderr) == (0, "")
    assert json.loads(done.stdout) == [[18.0, 22.0, 26.0]]


def test_an_interrupted_script_leaves_nothing(tmp_path: Path) -> None:
    script = tmp_path / "script.py"
    script.write_text(SCRIPT)
    command = [sys.executable, str(script), str(save_matmul(tmp_path / "n.onnx")), "wait"]
    with (
        nothing_left(),
        subprocess.Popen(
            command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, env=environment()
        ) as process,
    ):
        assert process.stdout is not None
        process.stdout.readline()
        process.send_signal(signal.SIGINT)
        _, stderr = process.communicate(timeout=20)
        assert process.returncode == -signal.SIGINT
        assert stderr.decode().rstrip().endswith("KeyboardInterrupt")


def environment() -> dict[str, str]:
    return {**os.environ, "PYTHONPATH": os.pathsep.join(path for path in sys.path if path)}
