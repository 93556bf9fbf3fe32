"""One loaded network: explicit threads, the configured provider or an error, checked inputs."""

from __future__ import annotations

import importlib.metadata
import logging
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from engine.errors import InvalidInput, StartupError
from engine.onnx import providers as execution
from engine.pipeline import Arrays

logger = logging.getLogger(__name__)

Shape = tuple[int | str | None, ...]

LOG_ERRORS_ONLY = 3
PACKAGES = ("onnxruntime", "onnxruntime-gpu")
DTYPES: dict[str, np.dtype[Any]] = {
    f"tensor({onnx_name})": np.dtype(name)
    for onnx_name, name in (
        ("float", "float32"),
        ("double", "float64"),
        *((name, name) for name in ("float16", "bool")),
        *((f"{sign}int{bits}",) * 2 for sign in ("", "u") for bits in (8, 16, 32, 64)),
    )
}


class Session:
    """An :class:`engine.pipeline.OnnxSession`; ``run`` belongs to one thread."""

    def __init__(self, session: Any) -> None:
        from onnxruntime.capi.onnxruntime_pybind11_state import InvalidArgument

        self._refusal: type[Exception] = InvalidArgument
        inputs, outputs = session.get_inputs(), session.get_outputs()
        self._session = session
        self._input_names = tuple(each.name for each in inputs)
        self._input_shapes: tuple[Shape, ...] = tuple(tuple(each.shape) for each in inputs)
        self._input_dtypes = tuple(_dtype(each) for each in inputs)
        self._output_names = tuple(each.name for each in outputs)
        self._output_shapes: tuple[Shape, ...] = tuple(tuple(each.shape) for each in outputs)

    @property
    def input_names(self) -> tuple[str, ...]:
        return self._input_names

    @property
    def output_names(self) -> tuple[str, ...]:
        return self._output_names

    @property
    def input_shapes(self) -> tuple[Shape, ...]:
        return self._input_shapes

    @property
    def output_shapes(self) -> tuple[Shape, ...]:
        return self._output_shapes

    @property
    def input_dtypes(self) -> tuple[np.dtype[Any], ...]:
        return self._input_dtypes

    @property
    def providers(self) -> tuple[str, ...]:
        return tuple(self._session.get_providers())

    def run(self, inputs: Arrays) -> dict[str, NDArray[Any]]:
        """Run the network on arrays by input name; raises ``InvalidInput`` when they do not fit."""
        check_inputs(inputs, self._input_names, self._input_shapes, self._input_dtypes)
        try:
            outputs = self._session.run(None, dict(inputs))
        except self._refusal as error:
            raise InvalidInput(f"the network refused its input: {error}") from error
        return dict(zip(self._output_names, outputs, strict=True))


def check_inputs(
    inputs: Arrays,
    names: Sequence[str],
    shapes: Sequence[Shape],
    dtypes: Sequence[np.dtype[Any]],
) -> None:
    """Compare arrays with what a network declares; a free dimension takes any size.

    Raises:
        InvalidInput: says which input, what came and what is wanted.
    """
    if set(inputs) != set(names):
        raise InvalidInput(f"inputs are {sorted(inputs)}, the network has {sorted(names)}")
    for name, shape, dtype in zip(names, shapes, dtypes, strict=True):
        array = inputs[name]
        if array.dtype != dtype:
            raise InvalidInput(f"input {name!r} has dtype {array.dtype}, the network wants {dtype}")
        fits = len(array.shape) == len(shape) and all(
            not isinstance(wanted, int) or wanted == size
            for size, wanted in zip(array.shape, shape, strict=True)
        )
        if not fits:
            wanted_shape = ", ".join("?" if size is None else str(size) for size in shape)
            raise InvalidInput(
                f"input {name!r} has shape {list(array.shape)}, the network wants [{wanted_shape}]"
            )


def open_session(path: Path, providers: Sequence[str], threads: int) -> Session:
    """Load an ONNX file on ``providers`` with so many intra-op threads.

    Raises:
        StartupError: file missing or damaged, provider missing or not in use, ONNX Runtime
            missing or installed twice; says how to fix it.
    """
    execution.check_installed(installed_packages())
    import onnxruntime

    execution.check_available(providers, onnxruntime.get_available_providers())
    if not path.is_file():
        raise StartupError(f"model file {path} does not exist")
    try:
        session = onnxruntime.InferenceSession(
            str(path),
            sess_options=session_options(providers, threads),
            providers=execution.provider_options(providers),
        )
    except Exception as error:
        # ONNX Runtime's errors share no base class below Exception.
        raise StartupError(
            f"model file {path} cannot be loaded on {', '.join(providers)}: {error}"
        ) from error
    session.disable_fallback()
    execution.check_in_use(providers, session.get_providers())
    logger.info("%s runs on %s with %d thread(s)", path, session.get_providers(), threads)
    return Session(session)


def session_options(providers: Sequence[str], threads: int) -> Any:
    """Everything explicit, because the defaults suit a machine that does nothing else."""
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = threads
    options.inter_op_num_threads = 1
    options.execution_mode = onnxruntime.ExecutionMode.ORT_SEQUENTIAL
    options.log_severity_level = LOG_ERRORS_ONLY
    # Idle pool threads spin for milliseconds by default and take the gateway's core.
    options.add_session_config_entry("session.intra_op.allow_spinning", "0")
    options.add_session_config_entry("session.inter_op.allow_spinning", "0")
    if execution.is_strict(providers):
        options.add_session_config_entry("session.disable_cpu_ep_fallback", "1")
    return options


def installed_packages() -> list[str]:
    """Which of the two distributions of ONNX Runtime are installed."""
    found = []
    for name in PACKAGES:
        try:
            importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:
            continue
        found.append(name)
    return found


def _dtype(argument: Any) -> np.dtype[Any]:
    if argument.type not in DTYPES:
        raise StartupError(f"input {argument.name!r} has unsupported type {argument.type}")
    return DTYPES[argument.type]
