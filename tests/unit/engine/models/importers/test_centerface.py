from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import onnxruntime as ort
import pytest
from onnx import TensorProto, helper, numpy_helper

from engine.models.importers.centerface import convert

pytestmark = pytest.mark.unit

CHANNELS = (1, 2, 2, 10)


def _write_fixed_network(path: Path, channels: tuple[int, ...] = CHANNELS) -> None:
    """A network of CenterFace's outer shape: fixed dimensions, weights listed as inputs."""
    value = helper.make_tensor_value_info
    rng = np.random.default_rng(0)
    weights = [
        numpy_helper.from_array(rng.normal(size=(count, 3, 4, 4)).astype(np.float32), f"w{index}")
        for index, count in enumerate(channels)
    ]
    unused = numpy_helper.from_array(np.array(1, dtype=np.int64), "num_batches_tracked")
    nodes = [
        helper.make_node("Conv", ["input.1", f"w{index}"], [str(537 + index)], strides=[4, 4])
        for index in range(len(channels))
    ]
    inputs = [value("input.1", TensorProto.FLOAT, [10, 3, 32, 32])]
    inputs += [value(w.name, w.data_type, list(w.dims)) for w in (*weights, unused)]
    outputs = [
        value(str(537 + index), TensorProto.FLOAT, [10, count, 8, 8])
        for index, count in enumerate(channels)
    ]
    graph = helper.make_graph(nodes, "fixed", inputs, outputs, [*weights, unused])
    graph.value_info.append(value("537", TensorProto.FLOAT, [10, 1, 8, 8]))
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 9)], ir_version=4)
    onnx.save(model, str(path))


def test_any_size_and_batch_run_and_answers_stay(tmp_path: Path) -> None:
    _write_fixed_network(tmp_path / "fixed.onnx")
    convert(tmp_path / "fixed.onnx", tmp_path / "free.onnx")
    free = ort.InferenceSession(tmp_path / "free.onnx")
    assert [i.name for i in free.get_inputs()] == ["images"]
    assert [o.name for o in free.get_outputs()] == ["heatmap", "scale", "offset", "landmarks"]
    shapes = [a.shape for a in free.run(None, {"images": np.zeros((2, 3, 64, 96), np.float32)})]
    assert shapes == [(2, count, 16, 24) for count in CHANNELS]

    fixed = ort.InferenceSession(tmp_path / "fixed.onnx", _quiet())
    images = np.random.default_rng(1).random((10, 3, 32, 32), dtype=np.float32)
    before = fixed.run(None, {"input.1": images})
    after = free.run(None, {"images": images})
    for old, new in zip(before, after, strict=True):
        np.testing.assert_allclose(new, old, rtol=1e-5, atol=1e-5)


def test_weights_are_constants_and_unused_ones_are_gone(tmp_path: Path) -> None:
    _write_fixed_network(tmp_path / "fixed.onnx")
    convert(tmp_path / "fixed.onnx", tmp_path / "free.onnx")
    graph = onnx.load(tmp_path / "free.onnx").graph
    assert [value.name for value in graph.input] == ["images"]
    assert [weight.name for weight in graph.initializer] == ["w0", "w1", "w2", "w3"]
    assert len(graph.value_info) == 0


@pytest.mark.parametrize("channels", [(1, 2, 2), (1, 2, 2, 8)])
def test_another_network_is_refused(tmp_path: Path, channels: tuple[int, ...]) -> None:
    _write_fixed_network(tmp_path / "other.onnx", channels)
    with pytest.raises(ValueError, match=r"expected 1 input and 4 outputs|should have 4 dim"):
        convert(tmp_path / "other.onnx", tmp_path / "free.onnx")
    assert not (tmp_path / "free.onnx").exists()


def _quiet() -> ort.SessionOptions:
    options = ort.SessionOptions()
    options.log_severity_level = 3  # the fixed file's weights are inputs, which is warned about
    return options
