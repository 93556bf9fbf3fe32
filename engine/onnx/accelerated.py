"""Opening a network on CUDA or TensorRT: options, stream, engine folder, proof of accuracy."""

from __future__ import annotations

import hashlib
import logging
from contextlib import nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from engine.config import GpuConfig
from engine.errors import StartupError
from engine.manifest import InputSpec
from engine.onnx import providers as execution
from engine.onnx.accuracy import check_accuracy
from engine.onnx.binding import BoundSession, Device, Mark
from engine.onnx.cudart import CudaRuntime, find_runtime
from engine.onnx.pixels import PIXELS, read_inputs, take_pixels
from engine.onnx.profiles import Shape, shape_profiles
from engine.onnx.session import Session, check_build, load, session_options

logger = logging.getLogger(__name__)

EXTERNAL_WEIGHTS = "session.model_external_initializers_file_folder_path"


@dataclass(frozen=True, slots=True, kw_only=True)
class Accelerator:
    """What all sessions of a worker have in common. ``sizes`` are the batch sizes, rising;
    ``engines`` is the folder where TensorRT keeps what it builds."""

    providers: tuple[str, ...]
    gpu: GpuConfig
    sizes: tuple[int, ...]
    engines: Path
    mark: Mark = nullcontext


def open_accelerated(
    path: Path, accelerator: Accelerator, picture: InputSpec | None = None
) -> BoundSession:
    """Load an ONNX file; with ``picture`` as a network that takes pixels.

    Raises:
        StartupError: as :func:`engine.onnx.session.open_session`; also when fp16 is too far off.
    """
    uses_cuda = execution.is_accelerated(accelerator.providers)
    check_build(accelerator.providers)
    if uses_cuda:
        _preload_libraries()
    model = _Model(path, picture)
    runtime = find_runtime() if uses_cuda else None
    providers = _providers(model, accelerator, runtime)
    options = session_options(threads=1)
    if picture is not None:
        options.add_session_config_entry(EXTERNAL_WEIGHTS, str(path.parent))
    device = Device(execution.DEVICES[providers[0][0]], accelerator.gpu.device_id, runtime)
    uses_tensorrt = providers[0][0] == execution.TENSORRT
    session = BoundSession(
        load(model.source, path, providers, options),
        device,
        accelerator.sizes,
        takes_pixels=picture is not None,
        max_rows=accelerator.sizes[-1] if uses_tensorrt and model.has_free_rows else 0,
        mark=accelerator.mark,
    )
    if uses_cuda and runtime is None:
        logger.warning("libcudart is not found: copies go through pageable memory")
    if uses_tensorrt and accelerator.gpu.tensorrt_fp16:
        _check_fp16(session, model)
    return session


class _Model:
    """A file as it is loaded, and what it takes."""

    def __init__(self, path: Path, picture: InputSpec | None) -> None:
        declared = read_inputs(path)
        self.path = path
        self.source: str | bytes = str(path)
        self.inputs: dict[str, Shape] = {each.name: each.shape for each in declared}
        if picture is not None:
            self.source = take_pixels(path, picture)
            given = declared[0]
            height, width = picture.height, picture.width
            # The second is for a TensorRT that leaves what is put in front to CUDA: its engine
            # then begins where the network used to.
            self.inputs = {
                PIXELS: (given.shape[0], height, width, 3),
                given.name: (given.shape[0], 3, height, width),
            }

    @property
    def has_free_rows(self) -> bool:
        return any(shape and not isinstance(shape[0], int) for shape in self.inputs.values())

    def digest(self) -> str:
        """Names the network's content."""
        if isinstance(self.source, bytes):
            return hashlib.sha256(self.source).hexdigest()[:16]
        with self.path.open("rb") as file:
            return hashlib.file_digest(file, "sha256").hexdigest()[:16]


def _providers(
    model: _Model, accelerator: Accelerator, runtime: CudaRuntime | None
) -> list[tuple[str, execution.Options]]:
    """Each provider with its options; those on the same device share a stream."""
    gpu = accelerator.gpu
    stream = 0
    if gpu.stream_priority:
        if runtime is None:
            raise StartupError("cuda_stream_priority needs libcudart, which is not found")
        stream = runtime.create_stream(gpu.device_id, gpu.stream_priority)
    pairs = []
    for name in accelerator.providers:
        options: execution.Options = {}
        if name == execution.CUDA:
            options = execution.cuda_options(gpu, stream)
        elif name == execution.TENSORRT:
            profiles = shape_profiles(model.inputs, accelerator.sizes)
            engines = engine_folder(accelerator, model.digest())
            options = execution.tensorrt_options(gpu, stream, engines, profiles)
        pairs.append((name, options))
    return pairs


def engine_folder(accelerator: Accelerator, digest: str) -> Path:
    """Where the engines of one network lie, in one precision and for one largest batch; made here.

    TensorRT's file names tell devices and versions apart.
    """
    precision = "fp16" if accelerator.gpu.tensorrt_fp16 else "fp32"
    folder = accelerator.engines / f"{digest}-{precision}-{accelerator.sizes[-1]}"
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise StartupError(f"no folder for TensorRT's engines: {error}") from error
    return folder


def _check_fp16(session: BoundSession, model: _Model) -> None:
    options = session_options(threads=1)
    options.add_session_config_entry(EXTERNAL_WEIGHTS, str(model.path.parent))
    original = Session(
        load(model.source, model.path, execution.plain_options([execution.CPU]), options)
    )
    errors = check_accuracy(session, original, f"model file {model.path} in fp16")
    logger.info("%s: fp16 is %s off fp32", model.path, _percent(errors))


def _percent(errors: dict[str, float]) -> str:
    return ", ".join(f"{name} {100 * error:.2g} %" for name, error in errors.items())


def _preload_libraries() -> None:
    """Find CUDA and cuDNN where their Python packages put them, if they are installed as such."""
    import onnxruntime

    preload: Any = getattr(onnxruntime, "preload_dlls", None)  # since 1.21
    if preload is not None:
        preload()
