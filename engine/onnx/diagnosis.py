"""Why a CUDA provider does not run here: the first piece that is missing, in words.

ONNX Runtime itself falls back to the CPU and writes a line to its log.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

CUDA = "CUDAExecutionProvider"
TENSORRT = "TensorrtExecutionProvider"
_CUFFT = {12: 11, 13: 12}  # by major version of CUDA


class Library(NamedTuple):
    """A shared library, and what brings it."""

    name: str
    remedy: str


def find_missing(provider: str, cuda_version: str, load: Callable[[str], Any] = ctypes.CDLL) -> str:
    """One clause about the first missing piece, empty when nothing obvious is missing.

    ``cuda_version`` is what ONNX Runtime was built for ("12.8"), empty if unknown.
    """
    if provider not in (CUDA, TENSORRT):
        return ""
    return _driver_trouble(load) or next(_missing_libraries(provider, cuda_version, load), "")


def _driver_trouble(load: Callable[[str], Any]) -> str:
    try:
        driver = load("libcuda.so.1")
    except OSError:
        return (
            "the NVIDIA driver (libcuda.so.1) is not installed, or not passed into this container "
            "(docker run --gpus all)"
        )
    if error := driver.cuInit(0):
        return f"the NVIDIA driver cannot be used (cuInit says {error}; see nvidia-smi)"
    count = ctypes.c_int()
    driver.cuDeviceGetCount(ctypes.byref(count))
    return "" if count.value else "the NVIDIA driver sees no device (see CUDA_VISIBLE_DEVICES)"


def _missing_libraries(
    provider: str, cuda_version: str, load: Callable[[str], Any]
) -> Iterator[str]:
    major = int(cuda_version.split(".")[0]) if cuda_version[:1].isdigit() else 12
    for library in _libraries(provider, major):
        try:
            load(library.name)
        except OSError:
            yield f"{library.name} is not found: {library.remedy}"


def _libraries(provider: str, major: int) -> Iterator[Library]:
    cuda = f"install CUDA {major} (pip install 'onnxruntime-gpu[cuda,cudnn]')"
    cufft = _CUFFT.get(major, major - 1)
    for name in (f"cudart.so.{major}", f"cublasLt.so.{major}", f"cublas.so.{major}"):
        yield Library(f"lib{name}", cuda)
    yield Library("libcurand.so.10", cuda)
    yield Library(f"libcufft.so.{cufft}", cuda)
    yield Library("libcudnn.so.9", f"install cuDNN 9 for CUDA {major}")
    if provider == TENSORRT:
        yield Library("libnvinfer.so.10", "install TensorRT 10")
