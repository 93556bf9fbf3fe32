from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from engine.errors import InvalidInput, StartupError
from engine.manifest import Manifest
from engine.onnx.session import Session, open_session
from engine.onnx.tensors import TensorPipeline, build, join, split
from engine.tensors import pack, unpack
from tests.fakes.networks import save_add_and_negate, save_matmul, save_running_sum

pytestmark = pytest.mark.unit

WEIGHTS = np.arange(12, dtype=np.float32).reshape(4, 3)


class CountingSession(Session):
    """Counts the rows of each run."""

    runs: list[int]

    def run(self, inputs: Any) -> dict[str, NDArray[Any]]:
        self.runs.append(next(iter(inputs.values())).shape[0])
        return super().run(inputs)


def pipeline_over(path: Path) -> tuple[TensorPipeline, list[int]]:
    session = open_session(path, ("CPUExecutionProvider",), 1)
    session.__class__ = CountingSession
    assert isinstance(session, CountingSession)
    session.runs = []
    pipeline = TensorPipeline(session)
    session.runs.clear()
    return pipeline, session.runs


def prepare(pipeline: TensorPipeline, **arrays: NDArray[Any]) -> Any:
    packed = pack(arrays)
    return pipeline.prepare(memoryview(packed.payload), packed.meta, b"")


def rows(count: int, start: int = 0) -> NDArray[np.float32]:
    return np.arange(start, start + 4 * count, dtype=np.float32).reshape(count, 4)


def test_items_of_any_number_of_rows_run_as_one_and_are_split_again(tmp_path: Path) -> None:
    pipeline, runs = pipeline_over(save_matmul(tmp_path / "n.onnx"))
    items = [rows(1), rows(3, 50), rows(0), rows(2, 7)]
    answers = pipeline.run([prepare(pipeline, x=item) for item in items])
    assert runs == [6]
    for item, answer in zip(items, answers, strict=True):
        np.testing.assert_array_equal(answer["y"], item @ WEIGHTS)


def test_company_does_not_change_an_answer(tmp_path: Path) -> None:
    pipeline, _ = pipeline_over(save_matmul(tmp_path / "n.onnx"))
    item = prepare(pipeline, x=rows(2))
    (alone,) = pipeline.run([item])
    together = pipeline.run([prepare(pipeline, x=1e6 * rows(1)), item])[1]
    np.testing.assert_array_equal(alone["y"], together["y"])


def test_a_network_with_a_fixed_first_dimension_runs_item_by_item(tmp_path: Path) -> None:
    pipeline, runs = pipeline_over(save_matmul(tmp_path / "n.onnx", rows=2))
    assert not pipeline.joins
    items = [prepare(pipeline, x=rows(2, start)) for start in (0, 100)]
    answers = pipeline.run(items)
    assert runs == [2, 2]
    np.testing.assert_array_equal(answers[1]["y"], rows(2, 100) @ WEIGHTS)


def test_a_free_first_dimension_that_is_time_is_found_out(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    pipeline, runs = pipeline_over(save_running_sum(tmp_path / "n.onnx"))
    assert not pipeline.joins
    assert "joining rows changes" in caplog.text
    ones = np.ones((3, 2), np.float32)
    answers = pipeline.run([prepare(pipeline, x=ones), prepare(pipeline, x=ones)])
    assert runs == [3, 3]
    assert answers[1]["y"][:, 0].tolist() == [1.0, 2.0, 3.0]


def test_items_of_different_shapes_run_in_one_group_per_shape(tmp_path: Path) -> None:
    pipeline, runs = pipeline_over(save_add_and_negate(tmp_path / "n.onnx"))
    wide, narrow = np.ones((1, 5), np.float32), np.ones((1, 2), np.float32)
    items = [prepare(pipeline, a=each, b=each) for each in (wide, narrow, wide, narrow, wide)]
    answers = pipeline.run(items)
    assert sorted(runs) == [2, 3]
    assert [answer["sum"].shape for answer in answers] == [(1, 5), (1, 2), (1, 5), (1, 2), (1, 5)]


def test_the_only_input_needs_no_name(tmp_path: Path) -> None:
    pipeline, _ = pipeline_over(save_matmul(tmp_path / "n.onnx"))
    prepared = prepare(pipeline, **{"": rows(1)})
    assert list(prepared) == ["x"]


def test_prepared_items_do_not_look_into_the_payload(tmp_path: Path) -> None:
    pipeline, _ = pipeline_over(save_matmul(tmp_path / "n.onnx"))
    packed = pack({"x": rows(1)})
    payload = bytearray(packed.payload)
    prepared = pipeline.prepare(memoryview(payload), packed.meta, b"")
    payload[:] = bytes(len(payload))
    np.testing.assert_array_equal(prepared["x"], rows(1))


def test_inputs_with_different_numbers_of_rows_are_refused(tmp_path: Path) -> None:
    pipeline, _ = pipeline_over(save_add_and_negate(tmp_path / "n.onnx"))
    with pytest.raises(InvalidInput, match="different numbers of rows"):
        prepare(pipeline, a=np.ones((1, 5), np.float32), b=np.ones((2, 5), np.float32))


def test_an_input_that_does_not_fit_is_refused_before_it_has_company(tmp_path: Path) -> None:
    pipeline, _ = pipeline_over(save_matmul(tmp_path / "n.onnx"))
    with pytest.raises(InvalidInput, match=r"wants \[n, 4\]"):
        prepare(pipeline, x=np.ones((1, 5), np.float32))
    with pytest.raises(InvalidInput, match="tensor meta"):
        pipeline.prepare(memoryview(b"picture"), b"", b"")


def test_the_answer_is_tensors_and_their_description(tmp_path: Path) -> None:
    pipeline, _ = pipeline_over(save_matmul(tmp_path / "n.onnx"))
    prepared = prepare(pipeline, x=rows(2))
    (raw,) = pipeline.run([prepared])
    output = pipeline.interpret(prepared, raw, b"")
    assert json.loads(output.data) == {
        "tensors": [{"name": "y", "dtype": "float32", "shape": [2, 3]}]
    }
    (attachment,) = output.attachments
    arrays = unpack(attachment.meta, attachment.payload)
    np.testing.assert_array_equal(arrays["y"], rows(2) @ WEIGHTS)


def test_join_and_split_are_inverse() -> None:
    items = [{"x": rows(count)} for count in (2, 0, 1)]
    parts = split(join(items), [2, 0, 1])
    for item, part in zip(items, parts, strict=True):
        np.testing.assert_array_equal(item["x"], part["x"])
    with pytest.raises(ValueError, match="has not 2 rows"):
        split({"y": np.zeros(3)}, [1, 1])


def test_a_manifest_without_a_file_is_explained() -> None:
    with pytest.raises(StartupError, match="names no file 'model'"):
        build(Manifest(name="m"), None)  # type: ignore[arg-type]
