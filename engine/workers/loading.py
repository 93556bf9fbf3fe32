"""Loading a model inside a worker: import the pipeline, build it, warm it up, time it."""

from __future__ import annotations

import importlib
import time
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from types import MappingProxyType
from typing import Any, Protocol, cast

from engine.config import GpuConfig
from engine.errors import StartupError
from engine.manifest import InputSpec, Manifest
from engine.pipeline import OnnxSession, Pipeline, Resources

WARM_UP_BUDGET_S = 20.0
WARM_UP_REPEATS = 3


class PipelineFactory(Protocol):
    """What a pipeline's name stands for."""

    def __call__(self, manifest: Manifest, resources: Resources) -> Pipeline: ...


class WorkerResources:
    """Opens sessions with the worker's providers and threads, and remembers what they run on.

    ``mark`` makes ranges for a profiler of what a session on a GPU does.
    """

    def __init__(
        self,
        execution_providers: tuple[str, ...],
        threads: int,
        *,
        gpu: GpuConfig | None = None,
        max_batch_size: int = 1,
        mark: Callable[[str], AbstractContextManager[Any]] = nullcontext,
    ) -> None:
        self._execution_providers = execution_providers
        self._threads = threads
        self._gpu = gpu or GpuConfig()
        self._max_batch_size = max_batch_size
        self._mark = mark
        self._sessions: list[OnnxSession] = []

    def open_session(self, path: Path, picture: InputSpec | None = None) -> OnnxSession:
        # Imported here: only a pipeline that opens a network needs ONNX Runtime.
        from engine.onnx.session import open_session

        session: OnnxSession
        if self.is_accelerated:
            session = self._open_accelerated(path, picture)
        else:
            session = open_session(path, self._execution_providers, self._threads)
        self._sessions.append(session)
        return session

    def _open_accelerated(self, path: Path, picture: InputSpec | None) -> OnnxSession:
        from engine.models.store import default_home
        from engine.onnx.accelerated import Accelerator, open_accelerated

        accelerator = Accelerator(
            providers=self._execution_providers,
            gpu=self._gpu,
            sizes=tuple(warm_up_sizes(self._max_batch_size)),
            engines=default_home() / "engines",
            mark=self._mark,
        )
        return open_accelerated(path, accelerator, picture)

    @property
    def is_accelerated(self) -> bool:
        """Whether sessions are opened on a GPU, with buffers for fixed batch sizes."""
        from engine.onnx.providers import is_accelerated

        return is_accelerated(self._execution_providers)

    @property
    def providers(self) -> tuple[str, ...]:
        """Execution providers in use by any session, in order of first use."""
        return tuple(dict.fromkeys(name for each in self._sessions for name in each.providers))


def import_factory(name: str) -> PipelineFactory:
    """Import ``module:factory``; raises ``StartupError`` naming what is missing."""
    module_name, separator, attribute = name.partition(":")
    if not (module_name and separator and attribute):
        raise StartupError(f"pipeline {name!r} must be written as module:factory")
    try:
        module = importlib.import_module(module_name)
    except ModuleNotFoundError as error:
        raise StartupError(
            f"pipeline {name!r} cannot be imported: {error}; install the missing package "
            "or put its folder on PYTHONPATH"
        ) from error
    factory = getattr(module, attribute, None)
    if not callable(factory):
        raise StartupError(f"pipeline {name!r}: {module_name} has no callable {attribute!r}")
    return cast(PipelineFactory, factory)


def warm_up_sizes(max_batch_size: int) -> list[int]:
    """1, 2, 4, … and ``max_batch_size`` itself."""
    sizes = [1 << power for power in range(max_batch_size.bit_length())]
    return sizes if sizes[-1] == max_batch_size else [*sizes, max_batch_size]


def prepare_sizes(pipeline: Pipeline, max_batch_size: int) -> None:
    """Run every size once, whatever that takes: an accelerator chooses its algorithms and takes its
    memory at the first run of a size, and nobody who waits for an answer is to pay for that."""
    for size in warm_up_sizes(max_batch_size):
        pipeline.warm_up(size)


def warm_up(
    pipeline: Pipeline,
    max_batch_size: int,
    measured_run_s: Mapping[int, float] = MappingProxyType({}),
    budget_s: float = WARM_UP_BUDGET_S,
) -> dict[int, float]:
    """Seconds per run and batch size: the fastest of a few, after one that is not counted.

    Sizes that would not fit into ``budget_s`` are left out, except size 1. What an earlier worker
    measured is taken over, after one run of size 1.
    """
    if measured_run_s:
        pipeline.warm_up(1)
        return dict(measured_run_s)
    began = time.monotonic()
    fastest: dict[int, float] = {}
    for size in warm_up_sizes(max_batch_size):
        first = _timed(pipeline, size)
        for _ in range(WARM_UP_REPEATS):
            fastest[size] = min(fastest.get(size, first), _timed(pipeline, size))
            if time.monotonic() - began > budget_s / 2:
                break
        # The next size takes about twice as long, once uncounted and once counted.
        if time.monotonic() - began + 4 * fastest[size] > budget_s:
            break
    return fastest


def _timed(pipeline: Pipeline, size: int) -> float:
    began = time.monotonic()
    pipeline.warm_up(size)
    return time.monotonic() - began
