from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from engine.errors import StartupError
from engine.onnx.accuracy import check_accuracy, relative_errors
from engine.onnx.session import open_session
from tests.fakes.networks import save_classifier
from tests.fakes.onnx_resources import FunctionSession

pytestmark = pytest.mark.unit


def network(factor: float, dtype: type[np.generic] = np.float32) -> FunctionSession:
    """The mean of a picture, made wrong by ``factor``."""
    return FunctionSession(
        lambda images: [images.mean(axis=(1, 2, 3)) * factor],
        input_shape=("batch", 8, 8, 3),
        input_dtype=dtype,
    )


def test_the_error_is_relative_to_all_items_of_an_output() -> None:
    ours = [{"a": np.array([3.0, 4.0])}, {"a": np.array([0.0, 0.0])}]
    theirs = [{"b": np.array([3.0, 4.0])}, {"b": np.array([0.5, 0.0])}]
    assert relative_errors(ours, theirs) == {"a": pytest.approx(0.1)}


@pytest.mark.parametrize("dtype", [np.float32, np.uint8])
def test_a_small_difference_passes(dtype: type[np.generic]) -> None:
    errors = check_accuracy(network(1.004, dtype), network(1.0, dtype), "m")
    assert errors == {"output0": pytest.approx(0.004, rel=1e-3)}


@pytest.mark.parametrize("factor", [1.02, 0.0, float("nan"), float("inf")])
@pytest.mark.filterwarnings("ignore:invalid value encountered")
def test_a_large_difference_stops_the_start(factor: float) -> None:
    with pytest.raises(StartupError, match=r"m: output 'output0' is .* % off fp32 .* 1 % is allow"):
        check_accuracy(network(factor), network(1.0), "m")


def test_outputs_of_another_shape_stop_the_start() -> None:
    other = FunctionSession(lambda images: [np.zeros((2, 2))], input_shape=("batch", 8, 8, 3))
    with pytest.raises(StartupError, match="outputs differ in shape"):
        check_accuracy(other, network(1.0), "m")


def test_a_network_agrees_with_itself(tmp_path: Path) -> None:
    path = save_classifier(tmp_path / "n.onnx", size=8, classes=3)
    session = open_session(path, ("CPUExecutionProvider",), 1)
    assert check_accuracy(session, session, "m") == {"scores": 0.0}
