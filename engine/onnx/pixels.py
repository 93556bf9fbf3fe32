"""A network that takes pixels: the way from a picture to its tensor, put in front as nodes.

What goes in is then uint8 ``[batch, height, width, 3]``, blue first, a quarter of the bytes of the
float32 that the network wants. The arithmetic is that of ``pipelines.images.to_tensor``.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from engine.errors import StartupError
from engine.manifest import InputSpec

PIXELS = "pixels"  # the new input
_PREFIX = "pixels/"  # of what is put in front
_RED_FIRST = (2, 1, 0)

Shape = tuple[int | str | None, ...]


class NetworkInput(NamedTuple):
    """One input as the file declares it; free dimensions are names or None."""

    name: str
    shape: Shape
    dtype: np.dtype[Any]


def check_picture_input(inputs: Sequence[NetworkInput], spec: InputSpec, label: str) -> None:
    """One float32 input ``[batch, 3, height, width]`` that takes ``spec``'s size.

    Raises:
        StartupError: begins with ``label`` and says what to change.
    """
    if len(inputs) != 1:
        names = ", ".join(each.name for each in inputs)
        raise StartupError(f"{label}: expected one input, the network has {names}")
    _, shape, dtype = inputs[0]
    if dtype != np.float32:
        raise StartupError(f"{label}: the network takes {dtype}, export it as float32")
    wanted = (3, spec.height, spec.width)
    if len(shape) != 4 or any(
        isinstance(has, int) and has != want for has, want in zip(shape[1:], wanted, strict=True)
    ):
        raise StartupError(
            f"{label}: the network's input is {list(shape)}, "
            f"but [input] gives [batch, 3, {spec.height}, {spec.width}]"
        )


def read_inputs(path: Path) -> tuple[NetworkInput, ...]:
    """What an ONNX file declares, without loading its weights' files."""
    return _inputs(_load(path))


def take_pixels(path: Path, spec: InputSpec) -> bytes:
    """The network of an ONNX file as one that takes pixels, serialised.

    Weights in files of their own stay there: whoever loads this names the file's folder.

    Raises:
        StartupError: it is no network for pictures of ``spec``'s size.
    """
    from onnx import TensorProto, helper

    model = _load(path)
    (given, *others) = _inputs(model)
    check_picture_input([given, *others], spec, f"model file {path}")
    graph = model.graph
    nodes = _prefix(given.name, spec)
    network = list(graph.node)
    del graph.node[:]
    graph.node.extend([*nodes, *network])
    kept = [each for each in graph.input if each.name != given.name]
    shape = [given.shape[0], spec.height, spec.width, 3]
    del graph.input[:]
    graph.input.extend([helper.make_tensor_value_info(PIXELS, TensorProto.UINT8, shape), *kept])
    try:
        data: bytes = model.SerializeToString()
    except ValueError as error:  # protobuf's limit
        raise StartupError(
            f"model file {path} is over 2 GB in one piece: save its weights as external data"
        ) from error
    return data


def _prefix(output: str, spec: InputSpec) -> list[Any]:
    """Nodes from ``PIXELS`` to ``output``.

    The cast comes first: TensorRT takes uint8 into a cast and into nothing else.
    """
    from onnx import TensorProto, helper

    nodes: list[Any] = []
    value = PIXELS

    def append(operator: str, *constants: Any, **attributes: Any) -> None:
        nonlocal value
        step = f"{_PREFIX}{operator.lower()}"
        nodes.extend(constants)
        names = [value, *(constant.output[0] for constant in constants)]
        nodes.append(helper.make_node(operator, names, [step], name=step, **attributes))
        value = step

    append("Cast", to=TensorProto.FLOAT)
    append("Transpose", perm=[0, 3, 1, 2])
    append("Gather", _constant("order", np.array(_RED_FIRST, np.int64)), axis=1)
    if any(spec.mean):
        append("Sub", _constant("mean", _per_channel(spec.mean)))
    if any(scale != 1.0 for scale in spec.scale):
        append("Mul", _constant("scale", _per_channel(spec.scale)))
    nodes[-1].output[0] = output
    return nodes


def _per_channel(values: tuple[float, ...]) -> np.ndarray[Any, np.dtype[np.float32]]:
    return np.array(values, np.float32).reshape(1, -1, 1, 1)


def _constant(name: str, values: np.ndarray[Any, Any]) -> Any:
    """A node, because old files list every initialiser as an input too."""
    from onnx import helper, numpy_helper

    return helper.make_node(
        "Constant", [], [_PREFIX + name], name=_PREFIX + name, value=numpy_helper.from_array(values)
    )


def _load(path: Path) -> Any:
    import onnx

    if not path.is_file():
        raise StartupError(f"model file {path} does not exist")
    try:
        return onnx.load(str(path), load_external_data=False)
    except Exception as error:
        # protobuf's errors share no base class with onnx's.
        raise StartupError(f"model file {path} cannot be read: {error}") from error


def _inputs(model: Any) -> tuple[NetworkInput, ...]:
    from onnx import helper

    weights = {each.name for each in model.graph.initializer}
    return tuple(
        NetworkInput(
            each.name,
            tuple(_size(dimension) for dimension in each.type.tensor_type.shape.dim),
            np.dtype(helper.tensor_dtype_to_np_dtype(each.type.tensor_type.elem_type)),
        )
        for each in model.graph.input
        if each.name not in weights
    )


def _size(dimension: Any) -> int | str | None:
    if dimension.HasField("dim_value"):
        return int(dimension.dim_value)
    return dimension.dim_param or None
