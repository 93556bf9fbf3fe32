"""The library: ``load_model`` gives a batched model to any program, threaded, asyncio or plain.

    with load_model("resnet50.onnx", max_batch_size=32) as model:
        scores = model.run(pixels)                          # blocks
        scores = await model.async_run(pixels)              # inside a coroutine
        model.submit(pixels, on_result=print)               # at once; a Future comes back
        async for scores in model.stream(many):             # in order

Batching, workers and retries are those of :class:`engine.vision.VisionEngine`, which runs on a
thread of its own. ONNX Runtime is imported in the workers only.
"""

from __future__ import annotations

import asyncio
import logging
import weakref
from collections.abc import AsyncIterable, AsyncIterator, Callable, Iterable, Mapping
from concurrent.futures import Future
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import msgspec
import numpy as np
from numpy.typing import NDArray

from engine.api_thread import EngineThread
from engine.base import ModelStatistics
from engine.config import ModelConfig
from engine.errors import StartupError, Unavailable
from engine.manifest import Manifest
from engine.tensors import UNNAMED, Packed, pack, unpack
from engine.types import AttachmentKind, Result

logger = logging.getLogger(__name__)

TENSOR_PIPELINE = "engine.onnx.tensors:build"
MEBIBYTE = 1024 * 1024

Input = NDArray[Any] | Mapping[str, NDArray[Any]] | bytes
Inputs = Iterable[Input] | AsyncIterable[Input]


def load_model(
    model: str | Path | Manifest,
    *,
    pipeline: str | None = None,
    max_batch_size: int = 32,
    batch_timeout_millis: float = 50.0,
    workers: int = 1,
    execution_providers: tuple[str, ...] = ("CPUExecutionProvider",),
    gpu_device_id: int = 0,
    gpu_memory_limit_mb: int = 0,
    cuda_streams: int = 1,
    cuda_stream_priority: int = 0,
    tensorrt_fp16: bool = False,
    threads: int = 0,
    max_concurrent_requests: int = 1024,
    max_item_bytes: int = 32 * MEBIBYTE,
    max_output_bytes: int = 32 * MEBIBYTE,
    start_timeout_s: float = 120.0,
) -> Model:
    """Start worker processes for a model and return once they are warm.

    Args:
        model: an ``.onnx`` file (tensors in, tensors out), a name of the catalogue, a file that
            describes a model (TOML), or a manifest.
        pipeline: ``module:factory`` that gives the file's tensors a meaning; replaces the
            manifest's.
        max_batch_size: items that run together at most; an item may have several rows.
        batch_timeout_millis: how long the first item of a batch waits for company at most.
        gpu_device_id: which CUDA device; this and the next four need CUDA or TensorRT first in
            ``execution_providers`` and mean what they mean in the configuration (docs/gpu.md).
        threads: intra-op threads per worker; 0 divides the available cores.
        max_concurrent_requests: unanswered items; beyond that the caller waits.

    Raises:
        StartupError: there is no such file, or it cannot be loaded; the text says what to do.
        ValueError: an option is out of its range or does not fit another; the text names it.
    """
    manifest = find_manifest(model, pipeline)
    config = ModelConfig(
        workers=workers,
        max_batch_size=max_batch_size,
        batch_timeout_millis=batch_timeout_millis,
        max_concurrent_requests=max_concurrent_requests,
        execution_providers=tuple(execution_providers),
        gpu_device_id=gpu_device_id,
        gpu_memory_limit_mb=gpu_memory_limit_mb,
        cuda_streams=cuda_streams,
        cuda_stream_priority=cuda_stream_priority,
        tensorrt_fp16=tensorrt_fp16,
        threads=threads,
        max_item_bytes=max_item_bytes,
        slab_bytes=2 * max_item_bytes,
        max_output_bytes=max_output_bytes,
        start_timeout_s=start_timeout_s,
    )
    return Model(EngineThread.start(manifest, config), manifest, config)


class Model:
    """A loaded model. Any thread may use it; it closes itself when collected or at exit.

    Inputs: an array (for a network with one input), arrays by name, or an encoded picture for a
    pipeline that takes pictures. Arrays keep their batch axis: ``[n, …]``, any ``n``: an input is
    one item and is never divided, so one with more rows than ``max_batch_size`` runs as it is.
    Answers: an array (from a network with one output), arrays by name, or the pipeline's parsed
    JSON.
    """

    def __init__(self, thread: EngineThread, manifest: Manifest, config: ModelConfig) -> None:
        self._thread = thread
        self._name = f"{manifest.name} version {manifest.version}"
        self._max_batch_size = config.max_batch_size
        self._takes_tensors_only = manifest.pipeline == TENSOR_PIPELINE
        # What all workers hold at most, so that nobody waits for the consumer.
        batches_per_worker = config.cuda_streams + config.prefetch_count
        self._look_ahead = config.max_batch_size * config.workers * batches_per_worker
        self._finalizer = weakref.finalize(self, thread.close)

    def run(self, x: Input) -> Any:
        """The answer to ``x``; blocks.

        Raises:
            InvalidInput: ``x`` does not fit the model.
            EngineError: any other reason why there is no answer; see ``engine.errors``.
        """
        return self.submit(x).result()

    async def async_run(self, x: Input) -> Any:
        """The answer to ``x``; cancelling this withdraws the item. Raises what ``run`` raises."""
        return await asyncio.wrap_future(await self._submit_async(x))

    def submit(
        self,
        x: Input,
        *,
        on_result: Callable[[Any], None] | None = None,
        on_error: Callable[[BaseException], None] | None = None,
    ) -> Future[Any]:
        """Begin to answer ``x``; waits only while ``max_concurrent_requests`` are unanswered.

        The callbacks run on the model's own thread and must be short. Cancelling the future
        withdraws the item. Without ``on_error``, an error is in the future, and logged (except
        that the model was closed), since whoever passes ``on_result`` may never look there.

        Raises:
            Overloaded: it would have to wait, inside a callback, which would wait for itself.
            Unavailable: the model is closed.
        """
        packed = self._encode(x)
        self._thread.wait_permit()
        future = self._thread.offer(packed.payload, packed.meta, decode)
        if on_result is not None or on_error is not None:
            future.add_done_callback(_Callbacks(on_result, on_error))
        return future

    async def stream(self, xs: Inputs, *, look_ahead: int | None = None) -> AsyncIterator[Any]:
        """Answers in the order of ``xs``, which is read at most ``look_ahead`` items ahead.

        The first item without an answer ends the stream with its error; leaving the loop early
        withdraws what was read ahead.
        """
        limit = self._look_ahead if look_ahead is None else look_ahead
        answers: asyncio.Queue[asyncio.Future[Any] | None] = asyncio.Queue(max(1, limit))
        feeder = asyncio.create_task(self._feed(xs, answers), name="model-stream-feeder")
        try:
            while (answer := await answers.get()) is not None:
                yield await answer
            await feeder  # raises what reading xs raised
        finally:
            feeder.cancel()
            await asyncio.gather(feeder, return_exceptions=True)
            while not answers.empty():
                if (answer := answers.get_nowait()) is not None:
                    answer.cancel()

    def statistics(self) -> ModelStatistics:
        """Counters and gauges; raises ``Unavailable`` when the model is closed."""
        return self._thread.statistics()

    def close(self) -> None:
        """Finish what is unanswered, for a few seconds at most, and stop the workers.

        Idempotent. Items that are not finished raise ``Unavailable``.
        """
        self._finalizer()

    def __repr__(self) -> str:
        life = "loaded" if self._finalizer.alive else "closed"
        return f"<Model {self._name}, max_batch_size {self._max_batch_size}, {life}>"

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.close()

    async def _submit_async(self, x: Input) -> Future[Any]:
        packed = self._encode(x)
        await self._thread.wait_permit_async()
        return self._thread.offer(packed.payload, packed.meta, decode)

    async def _feed(self, xs: Inputs, answers: asyncio.Queue[asyncio.Future[Any] | None]) -> None:
        try:
            async for x in _iterate(xs):
                answer = asyncio.wrap_future(await self._submit_async(x))
                try:
                    await answers.put(answer)
                except asyncio.CancelledError:
                    answer.cancel()
                    raise
        except asyncio.CancelledError:
            raise  # nobody reads any more
        except BaseException:
            await answers.put(None)  # the reader finds the error in this task
            raise
        await answers.put(None)

    def _encode(self, x: Input) -> Packed:
        """Copy ``x``, so that the caller may change it afterwards."""
        if isinstance(x, np.ndarray):
            return pack({UNNAMED: x})
        if isinstance(x, Mapping):
            return pack(x)
        if not isinstance(x, bytes | bytearray | memoryview):
            raise TypeError(f"input must be an array, arrays by name, or bytes, not {type(x)}")
        if self._takes_tensors_only:
            raise TypeError("this model takes arrays; name a pipeline that reads encoded pictures")
        return Packed(b"", bytes(x))


def find_manifest(model: str | Path | Manifest, pipeline: str | None) -> Manifest:
    """What ``load_model`` was given, as a manifest; see there."""
    if isinstance(model, Manifest):
        manifest = model
    elif str(model).endswith(".onnx"):
        path = Path(model).expanduser().absolute()
        if not path.is_file():
            raise StartupError(f"model file {path} does not exist")
        manifest = Manifest(name=path.stem, pipeline=TENSOR_PIPELINE, files={"model": str(path)})
    else:
        # Imported here: the catalogue and its downloads are needed for names only.
        from engine.models.store import ModelStore

        manifest = ModelStore().resolve(str(model))
    if pipeline is not None:
        manifest = msgspec.structs.replace(manifest, pipeline=pipeline)
    return manifest


def decode(result: Result) -> Any:
    """A result as the caller sees it: arrays if it has any, else the parsed JSON."""
    for attachment in result.attachments:
        if attachment.kind is AttachmentKind.TENSORS:
            arrays = unpack(attachment.meta, attachment.payload)
            copies = {name: array.copy() for name, array in arrays.items()}  # writable
            return copies if len(copies) != 1 else next(iter(copies.values()))
    return msgspec.json.decode(result.data)


class _Callbacks:
    """Tells a finished future apart for ``submit``'s two callbacks."""

    def __init__(
        self,
        on_result: Callable[[Any], None] | None,
        on_error: Callable[[BaseException], None] | None,
    ) -> None:
        self._on_result = on_result
        self._on_error = on_error

    def __call__(self, future: Future[Any]) -> None:
        if future.cancelled():
            return
        error = future.exception()
        if error is None:
            if self._on_result is not None:
                self._on_result(future.result())
        elif self._on_error is not None:
            self._on_error(error)
        elif not isinstance(error, Unavailable):
            logger.warning("an item was not answered: %s", error)


async def _iterate(xs: Inputs) -> AsyncIterator[Input]:
    if isinstance(xs, AsyncIterable):
        async for x in xs:
            yield x
    else:
        for x in xs:
            yield x
