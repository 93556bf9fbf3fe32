"""``open_session`` on real files: it is the only place that may import ONNX Runtime."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from engine.errors import InvalidInput, StartupError
from engine.onnx.session import check_inputs, open_session
from tests.fakes.networks import save_add_and_negate, save_matmul

pytestmark = pytest.mark.unit

CPU = ("CPUExecutionProvider",)


def test_a_network_runs_and_describes_itself(tmp_path: Path) -> None:
    session = open_session(save_add_and_negate(tmp_path / "n.onnx"), CPU, 1)
    assert session.input_names == ("a", "b")
    assert session.output_names == ("sum", "negative")
    assert session.input_shapes == (("n", "width"), ("n", "width"))
    assert session.input_dtypes == (np.dtype("float32"), np.dtype("float32"))
    assert session.providers == CPU
    ones = np.ones((2, 3), np.float32)
    outputs = session.run({"b": ones, "a": 2 * ones})
    np.testing.assert_array_equal(outputs["sum"], 3 * ones)
    np.testing.assert_array_equal(outputs["negative"], -2 * ones)


@pytest.mark.parametrize(
    ("inputs", "words"),
    [
        ({}, r"inputs are \[\], the network has \['x'\]"),
        ({"x": np.zeros((1, 4), np.float32), "z": np.zeros(1)}, r"inputs are \['x', 'z'\]"),
        ({"x": np.zeros((1, 4))}, "dtype float64, the network wants float32"),
        ({"x": np.zeros((1, 5), np.float32)}, r"shape \[1, 5\], the network wants \[n, 4\]"),
        ({"x": np.zeros(4, np.float32)}, r"shape \[4\], the network wants \[n, 4\]"),
    ],
)
def test_an_input_that_does_not_fit_is_explained(
    inputs: dict[str, np.ndarray], words: str, tmp_path: Path
) -> None:
    session = open_session(save_matmul(tmp_path / "n.onnx"), CPU, 1)
    with pytest.raises(InvalidInput, match=words):
        session.run(inputs)


def test_unnamed_free_dimensions_take_any_size() -> None:
    check_inputs({"x": np.zeros((3, 2))}, ["x"], [(None, 2)], [np.dtype("float64")])
    with pytest.raises(InvalidInput, match=r"wants \[\?, 2\]"):
        check_inputs({"x": np.zeros((3, 1))}, ["x"], [(None, 2)], [np.dtype("float64")])


def test_a_missing_file_is_named(tmp_path: Path) -> None:
    with pytest.raises(StartupError, match=r"nothing\.onnx does not exist"):
        open_session(tmp_path / "nothing.onnx", CPU, 1)


@pytest.mark.parametrize("content", [b"", b"not a model", b"\x08\x08"])
def test_a_damaged_file_is_named(content: bytes, tmp_path: Path) -> None:
    path = tmp_path / "damaged.onnx"
    path.write_bytes(content)
    with pytest.raises(StartupError, match=r"damaged\.onnx cannot be loaded"):
        open_session(path, CPU, 1)


def test_a_provider_that_is_not_there_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(StartupError, match="MadeUpExecutionProvider is not in this build"):
        open_session(save_matmul(tmp_path / "n.onnx"), ("MadeUpExecutionProvider",), 1)
