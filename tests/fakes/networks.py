"""Small ONNX files, built on the spot."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np
from onnx import ModelProto, TensorProto, helper, save_model

Shape = Sequence[int | str]

EMPTY_NETWORK = b"\x08\x08\x3a\x00"  # a model's IR version and a graph without anything


def save_matmul(path: Path, rows: int | str = "n") -> Path:
    """``y = x @ [[0..2], [3..5], [6..8], [9..11]]``: x ``[rows, 4]``, y ``[rows, 3]``."""
    weights = helper.make_tensor("w", TensorProto.FLOAT, [4, 3], np.arange(12, dtype=np.float32))
    nodes = [helper.make_node("MatMul", ["x", "w"], ["y"])]
    return _save(path, nodes, {"x": [rows, 4]}, {"y": [rows, 3]}, [weights])


def save_classifier(path: Path, *, size: int, classes: int) -> Path:
    """``scores [n, classes]`` of ``images [n, 3, size, size]``: a convolution, then a sum over the
    picture, with weights drawn once."""
    random = np.random.default_rng(0)
    kernels = random.standard_normal((classes, 3, 3, 3)).astype(np.float32)
    weights = helper.make_tensor("w", TensorProto.FLOAT, kernels.shape, kernels.flatten())
    nodes = [
        helper.make_node("Conv", ["images", "w"], ["maps"]),
        helper.make_node("Relu", ["maps"], ["active"]),
        helper.make_node("GlobalAveragePool", ["active"], ["means"]),
        helper.make_node("Flatten", ["means"], ["scores"]),
    ]
    shape: Shape = ["n", 3, size, size]
    return _save(path, nodes, {"images": shape}, {"scores": ["n", classes]}, [weights])


def save_running_sum(path: Path) -> Path:
    """``y = cumsum(x)`` along the first axis, which is free but is not a batch."""
    axis = helper.make_tensor("axis", TensorProto.INT64, [], [0])
    nodes = [helper.make_node("CumSum", ["x", "axis"], ["y"])]
    return _save(path, nodes, {"x": ["time", 2]}, {"y": ["time", 2]}, [axis])


def save_add_and_negate(path: Path) -> Path:
    """``sum = a + b`` and ``negative = -a`` over ``["n", "width"]``."""
    nodes = [
        helper.make_node("Add", ["a", "b"], ["sum"]),
        helper.make_node("Neg", ["a"], ["negative"]),
    ]
    shape: Shape = ["n", "width"]
    return _save(path, nodes, {"a": shape, "b": shape}, {"sum": shape, "negative": shape}, [])


def _save(
    path: Path,
    nodes: Sequence[object],
    inputs: dict[str, Shape],
    outputs: dict[str, Shape],
    constants: Sequence[object],
) -> Path:
    graph = helper.make_graph(
        nodes,
        path.stem,
        [helper.make_tensor_value_info(n, TensorProto.FLOAT, s) for n, s in inputs.items()],
        [helper.make_tensor_value_info(n, TensorProto.FLOAT, s) for n, s in outputs.items()],
        constants,
    )
    opset = [helper.make_opsetid("", 17)]
    model: ModelProto = helper.make_model(graph, opset_imports=opset, ir_version=8)
    save_model(model, str(path))
    return path
