"""``Resources`` for pipelines under test: real networks on plain ONNX Runtime, or a function."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime as ort
from numpy.typing import NDArray

from engine.config import GpuConfig
from engine.manifest import InputSpec
from engine.onnx.accelerated import Accelerator, open_accelerated
from engine.onnx.binding import BoundSession
from engine.pipeline import Arrays

Shape = tuple[int | str | None, ...]
_DTYPES = {"tensor(float)": np.float32, "tensor(float16)": np.float16, "tensor(uint8)": np.uint8}


class PlainSession:
    """What sessions on the CPU have in common."""

    providers = ("CPUExecutionProvider",)
    takes_pixels = False

    def allow_padding(self) -> None:
        pass

    def stack(self, rows: Sequence[NDArray[Any]]) -> NDArray[Any]:
        return np.stack(rows)


class OrtSession(PlainSession):
    """A network on the CPU, one thread."""

    def __init__(self, path: Path) -> None:
        options = ort.SessionOptions()
        options.intra_op_num_threads = 1
        options.log_severity_level = 3
        self._session = ort.InferenceSession(str(path), options, providers=["CPUExecutionProvider"])
        inputs = self._session.get_inputs()
        self.input_names = tuple(node.name for node in inputs)
        self.output_names = tuple(node.name for node in self._session.get_outputs())
        self.input_shapes: tuple[Shape, ...] = tuple(tuple(node.shape) for node in inputs)
        self.input_dtypes = tuple(np.dtype(_DTYPES[node.type]) for node in inputs)

    def run(self, inputs: Arrays) -> dict[str, NDArray[Any]]:
        outputs = self._session.run(list(self.output_names), dict(inputs))
        return dict(zip(self.output_names, outputs, strict=True))


class FunctionSession(PlainSession):
    """A network that is a function of its one input; remembers the shapes that it was given."""

    def __init__(
        self,
        function: Callable[[NDArray[Any]], list[NDArray[Any]]],
        *,
        input_shape: Shape = ("batch", 3, "height", "width"),
        input_dtype: type[np.generic] = np.float32,
        num_outputs: int = 1,
        input_names: tuple[str, ...] = ("images",),
    ) -> None:
        self._function = function
        self.input_names = input_names
        self.output_names = tuple(f"output{index}" for index in range(num_outputs))
        self.input_shapes: tuple[Shape, ...] = (input_shape,) * len(input_names)
        self.input_dtypes = (np.dtype(input_dtype),) * len(input_names)
        self.ran: list[tuple[int, ...]] = []

    def run(self, inputs: Arrays) -> dict[str, NDArray[Any]]:
        images = inputs[self.input_names[0]]
        self.ran.append(images.shape)
        return dict(zip(self.output_names, self._function(images), strict=True))


class OrtResources:
    """Opens ONNX files; implements ``engine.pipeline.Resources``."""

    def open_session(self, path: Path, picture: InputSpec | None = None) -> OrtSession:
        return OrtSession(path)


class FixedBufferResources:
    """The way of accelerators on the CPU: pixels in, fixed batch sizes, bound buffers."""

    def __init__(self, *sizes: int) -> None:
        self._accelerator = Accelerator(
            providers=PlainSession.providers, gpu=GpuConfig(), sizes=sizes, engines=Path()
        )

    def open_session(self, path: Path, picture: InputSpec | None = None) -> BoundSession:
        return open_accelerated(path, self._accelerator, picture)


class FunctionResources:
    """Lends the same session whatever is asked for."""

    def __init__(self, session: FunctionSession) -> None:
        self.session = session

    def open_session(self, path: Path, picture: InputSpec | None = None) -> FunctionSession:
        return self.session
