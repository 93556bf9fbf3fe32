"""One loaded network: explicit threads, the configured provider or an error, checked inputs."""

from __future__ import annotations

import importlib.metadata
import logging
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from engine.errors import InvalidInput, StartupError
from engine.onnx import providers as execution
from engine.onnx.diagnosis import find_missing
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

    @property
    def takes_pixels(self) -> bool:
        return False

    def allow_padding(self) -> None:
        """Nothing to do: any number of rows runs as it is."""

    def stack(self, rows: Sequence[NDArray[Any]]) -> NDArray[Any]:
        # One item needs no copy; stacking 320x256 costs 0.1 ms an item.
        return rows[0][None] if len(rows) == 1 else np.stack(rows)

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
    check_build(providers)
    if not path.is_file():
        raise StartupError(f"model file {path} does not exist")
    return Session(
        load(str(path), path, execution.plain_options(providers), session_options(threads))
    )


def check_build(providers: Sequence[str]) -> None:
    """Raises ``StartupError`` unless one build of ONNX Runtime is installed and has them."""
    execution.check_installed(installed_packages())
    import onnxruntime

    execution.check_available(providers, onnxruntime.get_available_providers())


def load(
    model: str | bytes,
    path: Path,
    providers: Sequence[tuple[str, Mapping[str, str]]],
    options: Any,
) -> Any:
    """ONNX Runtime's session on exactly these providers, which the build has; ``path`` is for
    people.

    Raises:
        StartupError: damaged file, or the first provider is not really in use.
    """
    import onnxruntime

    names = [name for name, _ in providers]
    if execution.is_strict(names):
        options.add_session_config_entry("session.disable_cpu_ep_fallback", "1")
    try:
        session = onnxruntime.InferenceSession(
            model, sess_options=options, providers=[(name, dict(each)) for name, each in providers]
        )
    except Exception as error:
        # ONNX Runtime's errors share no base class below Exception.
        missing = find_missing(names[0], onnxruntime.cuda_version)
        raise StartupError(
            f"model file {path} cannot be loaded on {', '.join(names)}: {missing or error}"
        ) from error
    session.disable_fallback()
    in_use = session.get_providers()
    if in_use[:1] != names[:1]:
        execution.check_in_use(names, in_use, find_missing(names[0], onnxruntime.cuda_version))
    logger.info("%s runs on %s", path, describe_placement(session))
    return session


def describe_placement(session: Any) -> str:
    """Providers in use, with the number of nodes that each runs where ONNX Runtime tells it."""
    try:
        parts = session.get_provider_graph_assignment_info()
    except Exception:  # noqa: BLE001 - older than 1.24, or not recorded
        return ", ".join(session.get_providers())
    nodes: Counter[str] = Counter()
    for part in parts:
        nodes[part.ep_name] += len(part.get_nodes())
    return ", ".join(f"{name} ({count} nodes)" for name, count in nodes.most_common())


def session_options(threads: int) -> Any:
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
    options.add_session_config_entry("session.record_ep_graph_assignment_info", "1")
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
