"""A network that takes pixels, against the same network behind ``pipelines.images``."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import numpy_helper

from engine.config import GpuConfig
from engine.errors import StartupError
from engine.manifest import InputSpec
from engine.onnx.accelerated import Accelerator, open_accelerated
from engine.onnx.pixels import read_inputs, take_pixels
from engine.onnx.session import open_session
from pipelines.images import to_tensor
from tests.fakes.networks import save_add_and_negate, save_classifier, save_matmul

pytestmark = pytest.mark.unit

CPU = ("CPUExecutionProvider",)
SPECS = (
    InputSpec(width=8, height=8),
    InputSpec(width=8, height=8, scale=(1 / 255,) * 3),
    InputSpec(
        width=8, height=8, mean=(123.675, 116.28, 103.53), scale=(1 / 58.395, 1 / 57.12, 1 / 57.375)
    ),
)


def accelerator(tmp_path: Path) -> Accelerator:
    """The path of accelerators, on the CPU."""
    return Accelerator(providers=CPU, gpu=GpuConfig(), sizes=(1, 2, 4), engines=tmp_path)


@pytest.mark.parametrize("spec", SPECS)
def test_pixels_become_what_the_pipeline_makes_of_them(spec: InputSpec, tmp_path: Path) -> None:
    path = save_classifier(tmp_path / "n.onnx", size=8, classes=5)
    pixels = np.random.default_rng(0).integers(0, 256, (3, 8, 8, 3), np.uint8)
    plain = open_session(path, CPU, 1)
    tensors = to_tensor(pixels, spec)
    session = open_accelerated(path, accelerator(tmp_path), spec)
    assert session.takes_pixels
    assert session.input_shapes == (("n", 8, 8, 3),)
    np.testing.assert_allclose(
        session.run({"pixels": pixels})["scores"],
        plain.run({"images": tensors})["scores"],
        rtol=1e-6,
    )


def test_a_fixed_batch_stays_fixed(tmp_path: Path) -> None:
    path = save_classifier(tmp_path / "n.onnx", size=8, classes=2)
    model = onnx.load(str(path))
    model.graph.input[0].type.tensor_type.shape.dim[0].dim_value = 2
    onnx.save(model, str(path))
    (given,) = read_inputs(path)
    assert given.shape == (2, 3, 8, 8)
    assert open_accelerated(path, accelerator(tmp_path), SPECS[0]).input_shapes == ((2, 8, 8, 3),)


def test_weights_in_a_file_of_their_own_are_found(tmp_path: Path) -> None:
    plain = save_classifier(tmp_path / "n.onnx", size=8, classes=2)
    model = onnx.load(str(plain))
    weights = model.graph.initializer[0]
    weights.CopyFrom(numpy_helper.from_array(numpy_helper.to_array(weights), weights.name))
    split = tmp_path / "split.onnx"
    onnx.save(model, str(split), save_as_external_data=True, location="w.bin", size_threshold=0)
    assert (tmp_path / "w.bin").is_file()
    pixels = {"pixels": np.full((1, 8, 8, 3), 9, np.uint8)}
    sessions = [open_accelerated(path, accelerator(tmp_path), SPECS[0]) for path in (plain, split)]
    np.testing.assert_array_equal(*(session.run(pixels)["scores"] for session in sessions))


def test_networks_that_take_no_picture_are_refused(tmp_path: Path) -> None:
    with pytest.raises(StartupError, match="expected one input, the network has a, b"):
        take_pixels(save_add_and_negate(tmp_path / "two.onnx"), SPECS[0])
    with pytest.raises(StartupError, match=r"input is \['n', 4\], but \[input\] gives"):
        take_pixels(save_matmul(tmp_path / "flat.onnx"), SPECS[0])
    with pytest.raises(StartupError, match=r"input is \['n', 3, 16, 16\]"):
        take_pixels(save_classifier(tmp_path / "large.onnx", size=16, classes=2), SPECS[0])


@pytest.mark.parametrize("content", [None, b"not a model"])
def test_a_missing_or_damaged_file_is_named(content: bytes | None, tmp_path: Path) -> None:
    path = tmp_path / "x.onnx"
    if content is not None:
        path.write_bytes(content)
    with pytest.raises(StartupError, match=r"model file .*x\.onnx (does not exist|cannot be read)"):
        take_pixels(path, SPECS[0])
