"""EfficientNet-Lite0: the published weights in a graph built here.

The architecture is that of "EfficientNet: Rethinking Model Scaling" (arXiv:1905.11946), B0 width
and depth, in the Lite variant: no squeeze-and-excitation, ReLU6 in place of swish. Padding is
TensorFlow's SAME, batch normalisation (epsilon 1e-3) is folded into the convolutions.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import onnx
from numpy.typing import NDArray
from onnx import NodeProto, TensorProto, helper, numpy_helper

from engine.models.importers.checkpoint import load_state_dict

_SIDE = 224
_CLASSES = 1000
_EPSILON = 1e-3


class _Stage(NamedTuple):
    """A row of blocks; only the first has the stride and changes the number of channels."""

    repeats: int
    kernel: int
    stride: int
    expansion: int
    channels_in: int
    channels_out: int


_STAGES = (
    _Stage(1, 3, 1, 1, 32, 16),
    _Stage(2, 3, 2, 6, 16, 24),
    _Stage(2, 5, 2, 6, 24, 40),
    _Stage(3, 3, 2, 6, 40, 80),
    _Stage(3, 5, 1, 6, 80, 112),
    _Stage(4, 5, 2, 6, 112, 192),
    _Stage(1, 3, 1, 6, 192, 320),
)


def convert(source: Path, target: Path) -> None:
    """Build the network from the checkpoint ``source`` and write it to ``target``.

    Input ``images`` is float32 [batch, 3, 224, 224], RGB, (value - 127) / 128; output ``logits``
    is float32 [batch, 1000].

    Raises:
        ValueError: the checkpoint is damaged or not this network's.
    """
    try:
        model = _Builder(load_state_dict(source)).build()
        onnx.checker.check_model(model, full_check=True)
    except KeyError as error:
        raise ValueError(f"{source.name} has no tensor {error}") from error
    except (onnx.checker.ValidationError, onnx.shape_inference.InferenceError) as error:
        raise ValueError(f"{source.name} does not fit EfficientNet-Lite0: {error}") from error
    onnx.save(model, str(target))


class _Builder:
    """Collects nodes and weights; every method returns the name of the value it produces."""

    def __init__(self, tensors: dict[str, NDArray[Any]]) -> None:
        self._tensors = tensors
        self._nodes: list[NodeProto] = []
        self._weights: list[TensorProto] = []
        self._side = _SIDE  # of the current feature map

    def build(self) -> onnx.ModelProto:
        self._weight("zero", np.float32(0))
        self._weight("six", np.float32(6))
        value = self._convolution("images", "_conv_stem", "_bn0", kernel=3, stride=2)
        index = 0
        for stage in _STAGES:
            for repeat in range(stage.repeats):
                value = self._block(value, f"_blocks.{index}", stage, first=repeat == 0)
                index += 1
        value = self._convolution(value, "_conv_head", "_bn1")
        value = self._node("GlobalAveragePool", [value], "pooled")
        value = self._node("Flatten", [value], "features")
        matrix = self._weight("_fc.weight", self._tensors["_fc.weight"])
        bias = self._weight("_fc.bias", self._tensors["_fc.bias"])
        self._node("Gemm", [value, matrix, bias], "logits", transB=1)
        return self._model()

    def _model(self) -> onnx.ModelProto:
        images = helper.make_tensor_value_info(
            "images", TensorProto.FLOAT, ["batch", 3, _SIDE, _SIDE]
        )
        logits = helper.make_tensor_value_info("logits", TensorProto.FLOAT, ["batch", _CLASSES])
        graph = helper.make_graph(
            self._nodes, "efficientnet_lite0", [images], [logits], self._weights
        )
        return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)

    def _block(self, value: str, name: str, stage: _Stage, *, first: bool) -> str:
        """Inverted residual: widen, filter each channel by itself, narrow; add the input."""
        channels_in = stage.channels_in if first else stage.channels_out
        stride = stage.stride if first else 1
        wide = channels_in * stage.expansion
        result = value
        if stage.expansion != 1:
            result = self._convolution(result, f"{name}._expand_conv", f"{name}._bn0")
        result = self._convolution(
            result,
            f"{name}._depthwise_conv",
            f"{name}._bn1",
            kernel=stage.kernel,
            stride=stride,
            groups=wide,
        )
        result = self._convolution(result, f"{name}._project_conv", f"{name}._bn2", activate=False)
        if stride == 1 and channels_in == stage.channels_out:
            result = self._node("Add", [result, value], f"{name}.sum")
        return result

    def _convolution(
        self,
        value: str,
        name: str,
        norm: str,
        *,
        kernel: int = 1,
        stride: int = 1,
        groups: int = 1,
        activate: bool = True,
    ) -> str:
        weight, bias = self._folded(name, norm)
        before, after = self._same_padding(kernel, stride)
        result = self._node(
            "Conv",
            [value, self._weight(f"{name}.weight", weight), self._weight(f"{name}.bias", bias)],
            f"{name}.result",
            kernel_shape=[kernel, kernel],
            strides=[stride, stride],
            pads=[before, before, after, after],
            group=groups,
        )
        return self._node("Clip", [result, "zero", "six"], f"{name}.relu6") if activate else result

    def _folded(self, name: str, norm: str) -> tuple[NDArray[Any], NDArray[Any]]:
        """The convolution's weight and bias with the batch normalisation after it multiplied in."""
        gain, shift, mean, variance = (
            self._tensors[f"{norm}.{part}"]
            for part in ("weight", "bias", "running_mean", "running_var")
        )
        factor = gain / np.sqrt(variance + _EPSILON)
        weight = self._tensors[f"{name}.weight"] * factor[:, None, None, None]
        return weight.astype(np.float32), (shift - mean * factor).astype(np.float32)

    def _same_padding(self, kernel: int, stride: int) -> tuple[int, int]:
        """Padding before and after each side; TensorFlow puts the odd pixel after."""
        side = -(-self._side // stride)
        padding = max((side - 1) * stride + kernel - self._side, 0)
        self._side = side
        return padding // 2, padding - padding // 2

    def _node(self, operation: str, inputs: list[str], output: str, **attributes: Any) -> str:
        self._nodes.append(helper.make_node(operation, inputs, [output], **attributes))
        return output

    def _weight(self, name: str, array: NDArray[Any] | np.float32) -> str:
        self._weights.append(numpy_helper.from_array(np.ascontiguousarray(array), name))
        return name
