"""The contract between a worker process and the pipeline it hosts.

A pipeline is named by a string such as ``pipelines.registry:build`` or ``my.module:Pipeline``
and imported in the worker only, so the engine imports nothing above it. The named object is
called as ``factory(manifest, resources)`` and returns a :class:`Pipeline`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from engine.manifest import InputSpec
from engine.types import Attachment

Arrays = Mapping[str, NDArray[Any]]


@dataclass(frozen=True, slots=True, kw_only=True)
class Output:
    """What a pipeline answers for one item: ``data`` is UTF-8 JSON, so never ``NaN``; an answer
    that is not fails its item as an internal error."""

    data: bytes
    attachments: tuple[Attachment, ...] = ()


class OnnxSession(Protocol):
    """One loaded network. ``run`` is called by one thread only, the pipeline's run thread."""

    @property
    def input_names(self) -> tuple[str, ...]: ...

    @property
    def output_names(self) -> tuple[str, ...]: ...

    @property
    def input_shapes(self) -> tuple[tuple[int | str | None, ...], ...]:
        """As declared by the model; free dimensions are strings or None."""

    @property
    def input_dtypes(self) -> tuple[np.dtype[Any], ...]: ...

    @property
    def providers(self) -> tuple[str, ...]:
        """Execution providers really in use, first preferred."""

    @property
    def takes_pixels(self) -> bool:
        """Whether pictures go in as uint8 ``[batch, height, width, 3]``, blue first, and the
        session does what ``InputSpec`` says to each channel; only if it was opened for them."""

    def allow_padding(self) -> None:
        """Rows do not depend on one another: a batch may run with more rows than it has, so that
        it has a size that is prepared. What is added is not answered."""

    def stack(self, rows: Sequence[NDArray[Any]]) -> NDArray[Any]:
        """Rows of the only input as one array, where the next ``run`` takes it from soonest. It is
        valid until that run ends."""

    def run(self, inputs: Arrays) -> dict[str, NDArray[Any]]:
        """Run the network; raises ``InvalidInput`` when names, dtypes or shapes do not fit."""


class Resources(Protocol):
    """What a worker lends its pipeline."""

    def open_session(self, path: Path, picture: InputSpec | None = None) -> OnnxSession:
        """Load an ONNX file with the configured provider and threads. For a network with one
        float32 input ``[batch, 3, height, width]`` say with ``picture`` how pictures become that:
        a session on an accelerator then does it itself (see ``OnnxSession.takes_pixels``)."""


class Pipeline(Protocol):
    """Three stages, each on its own thread(s) in the worker, overlapping between batches.

    ``prepare`` and ``interpret`` run per item and may run concurrently with one another and with
    ``run``; they raise ``InvalidInput`` for an item that is at fault, which fails that item alone.
    ``prepare`` must not keep a reference to ``payload``: it is shared memory that is reused.
    """

    def warm_up(self, batch_size: int) -> None:
        """Run a made-up batch of that size through ``run``; called before the worker is ready."""

    def prepare(self, payload: memoryview, meta: bytes, options: bytes) -> Any:
        """Turn one payload into the network's input for one item."""

    def run(self, batch: Sequence[Any]) -> Sequence[Any]:
        """Run the prepared items as one batch; returns one raw answer per item, same order."""

    def interpret(self, prepared: Any, raw: Any, options: bytes) -> Output:
        """Turn one raw answer into JSON and attachments."""
