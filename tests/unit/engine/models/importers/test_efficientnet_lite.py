from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime as ort
import pytest
from numpy.typing import NDArray

from engine.models.importers.efficientnet_lite import convert
from tests.fakes.checkpoints import write_checkpoint

pytestmark = pytest.mark.unit

Tensors = dict[str, NDArray[Any]]

# (blocks, kernel, widening, channels in, channels out) of each stage of EfficientNet-B0.
STAGES = (
    (1, 3, 1, 32, 16),
    (2, 3, 6, 16, 24),
    (2, 5, 6, 24, 40),
    (3, 3, 6, 40, 80),
    (3, 5, 6, 80, 112),
    (4, 5, 6, 112, 192),
    (1, 3, 6, 192, 320),
)


def _tensors() -> Tensors:
    """Random weights under the published checkpoint's names and shapes."""
    rng = np.random.default_rng(0)
    tensors: Tensors = {}

    def convolution(name: str, norm: str, out: int, per_group: int, kernel: int) -> None:
        scale = (2 / (per_group * kernel * kernel)) ** 0.5
        weight = rng.normal(scale=scale, size=(out, per_group, kernel, kernel))
        tensors[f"{name}.weight"] = weight.astype(np.float32)
        for part in ("weight", "bias", "running_mean", "running_var"):
            tensors[f"{norm}.{part}"] = rng.uniform(0.5, 1.0, out).astype(np.float32)

    convolution("_conv_stem", "_bn0", 32, 3, 3)
    index = 0
    for blocks, kernel, widening, channels_in, channels_out in STAGES:
        for block in range(blocks):
            before = channels_in if block == 0 else channels_out
            wide, name = before * widening, f"_blocks.{index}"
            if widening != 1:
                convolution(f"{name}._expand_conv", f"{name}._bn0", wide, before, 1)
            convolution(f"{name}._depthwise_conv", f"{name}._bn1", wide, 1, kernel)
            convolution(f"{name}._project_conv", f"{name}._bn2", channels_out, wide, 1)
            index += 1
    convolution("_conv_head", "_bn1", 1280, 320, 1)
    tensors["_fc.weight"] = rng.normal(size=(1000, 1280)).astype(np.float32)
    tensors["_fc.bias"] = rng.normal(size=1000).astype(np.float32)
    return tensors


def test_network_runs_batches_and_answers_each_item_alone(tmp_path: Path) -> None:
    write_checkpoint(tmp_path / "weights.pth", _tensors())
    convert(tmp_path / "weights.pth", tmp_path / "model.onnx")
    session = ort.InferenceSession(tmp_path / "model.onnx")
    images = np.random.default_rng(1).normal(size=(2, 3, 224, 224)).astype(np.float32)
    both = session.run(["logits"], {"images": images})[0]
    alone = session.run(["logits"], {"images": images[1:]})[0]
    assert both.shape == (2, 1000)
    assert np.isfinite(both).all()
    np.testing.assert_allclose(both[1:], alone, rtol=1e-4, atol=1e-4)


def test_checkpoint_without_a_tensor_is_refused(tmp_path: Path) -> None:
    tensors = _tensors()
    del tensors["_blocks.3._project_conv.weight"]
    write_checkpoint(tmp_path / "weights.pth", tensors)
    with pytest.raises(ValueError, match=r"has no tensor '_blocks\.3\._project_conv\.weight'"):
        convert(tmp_path / "weights.pth", tmp_path / "model.onnx")


def test_checkpoint_of_another_shape_is_refused(tmp_path: Path) -> None:
    tensors = _tensors()
    tensors["_fc.weight"] = tensors["_fc.weight"][:, :640].copy()
    write_checkpoint(tmp_path / "weights.pth", tensors)
    with pytest.raises(ValueError, match="does not fit EfficientNet-Lite0"):
        convert(tmp_path / "weights.pth", tmp_path / "model.onnx")
    assert not (tmp_path / "model.onnx").exists()
