"""Fixed buffers on the CPU: the code that feeds an accelerator, without one."""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime
import pytest
from numpy.typing import NDArray
from onnx import TensorProto, helper, save_model

from engine.errors import InvalidInput
from engine.onnx.binding import MAX_BINDINGS, BoundSession, Device, HostBuffer
from engine.onnx.cudart import CudaRuntime
from tests.fakes.networks import save_add_and_negate, save_classifier, save_matmul
from tests.unit.engine.onnx.test_cudart import Library

pytestmark = pytest.mark.unit

SIZES = (1, 2, 4)
WEIGHTS = np.arange(12, dtype=np.float32).reshape(4, 3)


def bound(path: Path, **options: Any) -> BoundSession:
    session = onnxruntime.InferenceSession(str(path), providers=["CPUExecutionProvider"])
    return BoundSession(session, Device("cpu"), SIZES, **options)


def rows(count: int, seed: int = 0) -> NDArray[np.float32]:
    return np.random.default_rng(seed).random((count, 4)).astype(np.float32)


@pytest.mark.parametrize("is_padded", [False, True])
@pytest.mark.parametrize("count", [1, 2, 3, 4, 5, 9])
def test_any_number_of_rows_is_answered(count: int, is_padded: bool, tmp_path: Path) -> None:
    session = bound(save_matmul(tmp_path / "n.onnx"))
    if is_padded:
        session.allow_padding()
    for seed in range(3):
        given = rows(count, seed)
        np.testing.assert_allclose(session.run({"x": given})["y"], given @ WEIGHTS, rtol=1e-6)


def test_padded_batches_run_only_at_the_sizes(tmp_path: Path) -> None:
    session = bound(save_matmul(tmp_path / "n.onnx"))
    session.allow_padding()
    for count in (1, 2, 3, 4, 3, 2, 1):
        session.run({"x": rows(count)})
    assert sorted(session._bindings) == [((1, 4),), ((2, 4),), ((4, 4),)]


def test_answers_outlive_the_next_run(tmp_path: Path) -> None:
    session = bound(save_matmul(tmp_path / "n.onnx"))
    first = session.run({"x": rows(2, seed=1)})["y"]
    kept = first.copy()
    session.run({"x": rows(2, seed=2)})
    np.testing.assert_array_equal(first, kept)


def test_stacked_rows_are_in_the_buffer_already(tmp_path: Path) -> None:
    session = bound(save_matmul(tmp_path / "n.onnx"))
    session.allow_padding()
    session.run({"x": np.ones((4, 4), np.float32)})  # what padding must not leave there
    given = rows(3)
    stacked = session.stack(list(given))
    assert np.may_share_memory(stacked, session._bindings[((4, 4),)].host_input("x"))
    np.testing.assert_allclose(session.run({"x": stacked})["y"], given @ WEIGHTS, rtol=1e-6)
    np.testing.assert_array_equal(session._bindings[((4, 4),)].host_input("x")[3], 0)


def test_stacking_refuses_another_dtype(tmp_path: Path) -> None:
    session = bound(save_matmul(tmp_path / "n.onnx"))
    with pytest.raises(TypeError):
        session.stack([np.zeros(4)])


def test_several_inputs_and_outputs_keep_their_names(tmp_path: Path) -> None:
    session = bound(save_add_and_negate(tmp_path / "n.onnx"))
    session.allow_padding()
    ones = np.ones((3, 5), np.float32)
    outputs = session.run({"b": ones, "a": 2 * ones})
    np.testing.assert_array_equal(outputs["sum"], 3 * ones)
    np.testing.assert_array_equal(outputs["negative"], -2 * ones)


def test_outputs_of_unknown_size_are_allocated_in_each_run(tmp_path: Path) -> None:
    """Like the boxes that a network's own suppression leaves."""
    session = bound(save_nonzero(tmp_path / "n.onnx"))
    for given in ([[0.0, 1.0]], [[1.0, 1.0]], [[0.0, 0.0]]):
        array = np.array(given, np.float32)
        np.testing.assert_array_equal(session.run({"x": array})["where"], np.nonzero(array))


def test_rows_that_do_not_come_back_are_noticed_when_padded(tmp_path: Path) -> None:
    session = bound(save_nonzero(tmp_path / "n.onnx"))
    session.allow_padding()
    with pytest.raises(ValueError, match="not one row per item"):
        session.run({"x": np.ones((3, 2), np.float32)})


def test_fixed_rows_are_never_padded(tmp_path: Path) -> None:
    session = bound(save_matmul(tmp_path / "n.onnx", rows=3))
    session.allow_padding()
    given = rows(3)
    np.testing.assert_allclose(session.run({"x": given})["y"], given @ WEIGHTS, rtol=1e-6)
    with pytest.raises(InvalidInput, match="shape"):
        session.run({"x": rows(2)})


def test_no_rows_need_no_buffers(tmp_path: Path) -> None:
    session = bound(save_matmul(tmp_path / "n.onnx"))
    assert session.run({"x": rows(0)})["y"].shape == (0, 3)
    assert not session._bindings


def test_more_rows_than_the_engine_was_built_for_are_refused(tmp_path: Path) -> None:
    session = bound(save_matmul(tmp_path / "n.onnx"), max_rows=4)
    session.run({"x": rows(4)})
    with pytest.raises(InvalidInput, match="5 rows, the engine was built for 4"):
        session.run({"x": rows(5)})


def test_buffers_are_bounded(tmp_path: Path) -> None:
    session = bound(save_add_and_negate(tmp_path / "n.onnx"))
    for width in range(1, MAX_BINDINGS + 10):
        ones = np.ones((1, width), np.float32)
        assert session.run({"a": ones, "b": ones})["sum"].shape == (1, width)
    assert len(session._bindings) == MAX_BINDINGS


def test_a_convolution_agrees_with_the_plain_session(tmp_path: Path) -> None:
    path = save_classifier(tmp_path / "n.onnx", size=16, classes=4)
    session = bound(path)
    session.allow_padding()
    pictures = np.random.default_rng(0).random((3, 3, 16, 16)).astype(np.float32)
    plain = onnxruntime.InferenceSession(str(path), providers=["CPUExecutionProvider"])
    (expected,) = plain.run(None, {"images": pictures})
    found = session.run({"images": session.stack(list(pictures))})["scores"]
    np.testing.assert_allclose(found, expected, rtol=1e-5)


def test_the_parts_of_a_run_are_marked(tmp_path: Path) -> None:
    marked: list[str] = []

    def mark(name: str) -> AbstractContextManager[None]:
        marked.append(name)
        return nullcontext()

    bound(save_matmul(tmp_path / "n.onnx"), mark=mark).run({"x": rows(1)})
    assert marked == ["copy in", "network", "copy out"]


def test_a_buffer_has_pages_of_its_own_and_is_pinned_until_it_is_closed() -> None:
    library = Library()
    device = Device("cuda", 0, CudaRuntime(library))
    buffer = HostBuffer((3, 5), np.dtype(np.float32), device)
    address = buffer.array.__array_interface__["data"][0]
    assert address % 4096 == 0
    buffer.array[:] = 1.0
    buffer.close()
    buffer.close()
    assert library.calls == [
        f"cudaHostRegister[{address}, 60, 1]",
        f"cudaHostUnregister[{address}]",
    ]


def test_a_buffer_that_cannot_be_pinned_is_not_unpinned() -> None:
    library = Library(cudaHostRegister=2)
    HostBuffer((1,), np.dtype(np.uint8), Device("cuda", 0, CudaRuntime(library))).close()
    assert len(library.calls) == 1


def save_nonzero(path: Path) -> Path:
    graph = helper.make_graph(
        [helper.make_node("NonZero", ["x"], ["where"])],
        "nonzero",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, ["n", 2])],
        [helper.make_tensor_value_info("where", TensorProto.INT64, [2, "found"])],
    )
    opset = [helper.make_opsetid("", 17)]
    save_model(helper.make_model(graph, opset_imports=opset, ir_version=8), str(path))
    return path
