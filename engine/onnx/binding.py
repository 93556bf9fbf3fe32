"""Running a network on fixed buffers: input on the device, outputs in pinned memory of the host.

Without them ONNX Runtime allocates and copies through pageable memory in every run.
"""

from __future__ import annotations

import mmap
from collections import OrderedDict
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from engine.errors import InvalidInput
from engine.onnx.buckets import bucket_of
from engine.onnx.cudart import CudaRuntime
from engine.onnx.session import DTYPES, Session, Shape, check_inputs
from engine.pipeline import Arrays

MAX_BINDINGS = 32  # sets of buffers per session; the longest unused makes room
Array = NDArray[Any]
Mark = Callable[[str], AbstractContextManager[Any]]


class Device(NamedTuple):
    """Where inputs go; ``runtime`` pins memory of the host, None leaves it pageable."""

    name: str  # ONNX Runtime's: "cuda", or "cpu" for the same code without an accelerator
    id: int = 0
    runtime: CudaRuntime | None = None


class HostBuffer:
    """An array on pages of its own, pinned if the device can."""

    def __init__(self, shape: Sequence[int], dtype: np.dtype[Any], device: Device) -> None:
        size = max(1, int(np.prod(shape)) * dtype.itemsize)
        # Whole pages: pinning locks pages, and a neighbour on the same one could not be pinned.
        self.array: Array = np.frombuffer(mmap.mmap(-1, size), dtype, int(np.prod(shape)))
        self.array = self.array.reshape(shape)
        self._address = self.array.__array_interface__["data"][0]
        self._runtime = device.runtime
        self.is_pinned = self._runtime is not None and self._runtime.try_pin(self._address, size)

    def close(self) -> None:
        """Unpin; the memory goes with the last reference to it."""
        if self.is_pinned and self._runtime is not None:
            self._runtime.unpin(self._address)
            self.is_pinned = False


class Binding:
    """The buffers of one set of input shapes, bound once. Belongs to the session's thread.

    Outputs whose shape the network declares are preallocated: their first dimension is fixed or
    named like the input's, the others are fixed. ONNX Runtime allocates the others in each run.
    """

    def __init__(
        self,
        session: Any,
        shapes: Mapping[str, tuple[int, ...]],
        dtypes: Mapping[str, np.dtype[Any]],
        device: Device,
    ) -> None:
        from onnxruntime import OrtValue

        self._session = session
        self._binding = session.io_binding()
        self._inputs: dict[str, tuple[HostBuffer, Any]] = {}
        self._outputs: dict[str, HostBuffer | None] = {}
        for name, shape in shapes.items():
            value = OrtValue.ortvalue_from_shape_and_type(
                list(shape), dtypes[name], device.name, device.id
            )
            self._binding.bind_ortvalue_input(name, value)
            self._inputs[name] = (HostBuffer(shape, dtypes[name], device), value)
        sizes = _named_sizes(session.get_inputs(), shapes)
        for output in session.get_outputs():
            known = _known_shape(output.shape, sizes)
            if known is None or output.type not in DTYPES:
                self._outputs[output.name] = None
                continue
            buffer = HostBuffer(known, DTYPES[output.type], device)
            value = OrtValue.ortvalue_from_numpy(buffer.array)  # on the host: no copy
            self._binding.bind_ortvalue_output(output.name, value)
            self._outputs[output.name] = buffer

    def host_input(self, name: str) -> Array:
        """What goes to the device next; fill it, or let ``copy_in`` do it."""
        return self._inputs[name][0].array

    def copy_in(self, inputs: Arrays) -> None:
        """Inputs to the device; missing rows become zeros."""
        for name, (buffer, value) in self._inputs.items():
            given, host = inputs[name], buffer.array
            if not np.may_share_memory(given, host):
                host[: len(given)] = given
            host[len(given) :] = 0
            value.update_inplace(host)

    def run(self) -> None:
        for name, buffer in self._outputs.items():
            if buffer is None:  # what it was bound to is the last run's result
                self._binding.bind_output(name, "cpu")
        self._session.run_with_iobinding(self._binding)

    def copy_out(self) -> dict[str, Array]:
        """Copies, because the next run writes to the same buffers."""
        values = self._binding.get_outputs()
        return {
            name: buffer.array.copy() if buffer is not None else value.numpy()
            for (name, buffer), value in zip(self._outputs.items(), values, strict=True)
        }

    def close(self) -> None:
        """Give the buffers back."""
        self._binding.clear_binding_inputs()
        self._binding.clear_binding_outputs()
        for buffer, _ in self._inputs.values():
            buffer.close()
        for output in self._outputs.values():
            if output is not None:
                output.close()


class BoundSession(Session):
    """An :class:`engine.pipeline.OnnxSession` on an accelerator; ``run`` belongs to one thread.

    Once padding is allowed, batches run at the nearest of ``sizes`` rows, on buffers that stay.
    ``max_rows`` is the most that an engine was built for, 0 for no limit.
    """

    def __init__(
        self,
        session: Any,
        device: Device,
        sizes: Sequence[int],
        *,
        takes_pixels: bool = False,
        max_rows: int = 0,
        mark: Mark = nullcontext,
    ) -> None:
        super().__init__(session)
        self._device = device
        self._sizes = tuple(sizes)
        self._takes_pixels = takes_pixels
        self._max_rows = max_rows
        self._mark = mark
        self._is_padded = False
        self._bindings: OrderedDict[tuple[tuple[int, ...], ...], Binding] = OrderedDict()

    @property
    def takes_pixels(self) -> bool:
        return self._takes_pixels

    def allow_padding(self) -> None:
        """Ignored where the network fixes its number of rows."""
        self._is_padded = all(_is_free(shape) for shape in self._input_shapes)

    def stack(self, rows: Sequence[Array]) -> Array:
        """Straight into the buffer that the device is fed from."""
        (name,) = self._input_names
        shape = (self._padded(len(rows)), *rows[0].shape)
        host = self._bind({name: shape}).host_input(name)[: len(rows)]
        return np.stack(rows, out=host, casting="no")

    def run(self, inputs: Arrays) -> dict[str, Array]:
        """See :class:`engine.pipeline.OnnxSession`."""
        check_inputs(inputs, self._input_names, self._input_shapes, self._input_dtypes)
        if any(array.size == 0 or array.ndim == 0 for array in inputs.values()):
            return super().run(inputs)  # nothing to prepare buffers for
        rows = max(len(array) for array in inputs.values())
        if 0 < self._max_rows < rows:
            raise InvalidInput(f"{rows} rows, the engine was built for {self._max_rows}")
        size = self._padded(rows)
        shapes = {
            name: (size, *array.shape[1:]) if self._is_padded else array.shape
            for name, array in inputs.items()
        }
        outputs = self._run_bound(inputs, shapes)
        return _without_padding(outputs, rows, size) if size > rows else outputs

    def _run_bound(self, inputs: Arrays, shapes: Mapping[str, tuple[int, ...]]) -> dict[str, Array]:
        binding = self._bind(shapes)
        with self._mark("copy in"):
            binding.copy_in(inputs)
        try:
            with self._mark("network"):
                binding.run()
        except self._refusal as error:
            raise InvalidInput(f"the network refused its input: {error}") from error
        with self._mark("copy out"):
            return binding.copy_out()

    def _padded(self, rows: int) -> int:
        return bucket_of(rows, self._sizes) if self._is_padded else rows

    def _bind(self, shapes: Mapping[str, tuple[int, ...]]) -> Binding:
        key = tuple(shapes[name] for name in self._input_names)
        binding = self._bindings.get(key)
        if binding is None:
            if len(self._bindings) >= MAX_BINDINGS:
                self._bindings.popitem(last=False)[1].close()
            dtypes = dict(zip(self._input_names, self._input_dtypes, strict=True))
            binding = Binding(self._session, shapes, dtypes, self._device)
            self._bindings[key] = binding
        self._bindings.move_to_end(key)
        return binding


def _without_padding(outputs: Mapping[str, Array], rows: int, size: int) -> dict[str, Array]:
    for name, array in outputs.items():
        if array.shape[:1] != (size,):
            raise ValueError(f"output {name!r} has shape {array.shape}, not one row per item")
    return {name: array[:rows] for name, array in outputs.items()}


def _is_free(shape: Shape) -> bool:
    return bool(shape) and not isinstance(shape[0], int)


def _named_sizes(inputs: Sequence[Any], shapes: Mapping[str, tuple[int, ...]]) -> dict[str, int]:
    """What the named dimensions of the inputs are in these shapes."""
    return {
        dimension: size
        for each in inputs
        for dimension, size in zip(each.shape, shapes[each.name], strict=True)
        if isinstance(dimension, str)
    }


def _known_shape(declared: Shape, sizes: Mapping[str, int]) -> tuple[int, ...] | None:
    known: list[int] = []
    for dimension in declared:
        size = dimension if isinstance(dimension, int) else sizes.get(dimension or "")
        if size is None:
            return None
        known.append(size)
    return tuple(known)
