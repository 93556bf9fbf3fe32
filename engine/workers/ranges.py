"""Named ranges for NVIDIA's profilers (NVTX), only while one listens."""

from __future__ import annotations

import importlib
import logging
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from functools import partial
from typing import Any

from engine.pipeline import Output, Pipeline

logger = logging.getLogger(__name__)

PROFILER = "NVTX_INJECTION64_PATH"  # set by Nsight for what it starts, workers included
DOMAIN = "clawstream"

Mark = Callable[[str], AbstractContextManager[Any]]


def find_mark(
    environment: Mapping[str, str], load: Callable[[str], Any] = importlib.import_module
) -> Mark | None:
    """What opens a range by name, or None when no profiler listens or ``nvtx`` is missing."""
    if PROFILER not in environment:
        return None
    try:
        nvtx = load("nvtx")
    except ImportError:
        logger.warning("a profiler listens, but there are no ranges for it: pip install nvtx")
        return None
    return partial(nvtx.annotate, domain=DOMAIN)


class MarkedPipeline:
    """A pipeline whose stages are ranges; implements ``engine.pipeline.Pipeline``."""

    def __init__(self, pipeline: Pipeline, mark: Mark) -> None:
        self._pipeline = pipeline
        self._mark = mark

    def warm_up(self, batch_size: int) -> None:
        with self._mark(f"warm up {batch_size}"):
            self._pipeline.warm_up(batch_size)

    def prepare(self, payload: memoryview, meta: bytes, options: bytes) -> Any:
        with self._mark("prepare"):
            return self._pipeline.prepare(payload, meta, options)

    def run(self, batch: Sequence[Any]) -> Sequence[Any]:
        with self._mark(f"run {len(batch)}"):
            return self._pipeline.run(batch)

    def interpret(self, prepared: Any, raw: Any, options: bytes) -> Output:
        with self._mark("interpret"):
            return self._pipeline.interpret(prepared, raw, options)
