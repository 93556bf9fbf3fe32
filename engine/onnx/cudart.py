"""The three calls of the CUDA runtime that ONNX Runtime does not offer to Python."""

from __future__ import annotations

import ctypes
import logging
from collections.abc import Callable
from typing import Any

from engine.errors import StartupError

logger = logging.getLogger(__name__)

MAJOR_VERSIONS = (13, 12, 11)  # one of them is loaded already, by ONNX Runtime
_PORTABLE = 1  # pinned for every device
_NON_BLOCKING = 1  # does not wait for the default stream


class CudaRuntime:
    """Calls into libcudart; addresses and streams are plain numbers."""

    def __init__(self, library: Any) -> None:
        self._library = library

    def try_pin(self, address: int, size_bytes: int) -> bool:
        """Lock pages in memory, so that the device reads them without a copy in between."""
        error: int = self._library.cudaHostRegister(
            ctypes.c_void_p(address), ctypes.c_size_t(size_bytes), ctypes.c_uint(_PORTABLE)
        )
        if error:
            logger.warning("%d bytes could not be pinned (CUDA error %d)", size_bytes, error)
        return error == 0

    def unpin(self, address: int) -> None:
        """Undo ``try_pin``."""
        self._library.cudaHostUnregister(ctypes.c_void_p(address))

    def create_stream(self, device_id: int, priority: int) -> int:
        """A stream of that priority (lower goes first; out of range is clamped by CUDA).

        It lives as long as the process. Raises ``StartupError``.
        """
        stream = ctypes.c_void_p()
        error = self._library.cudaSetDevice(ctypes.c_int(device_id))
        error = error or self._library.cudaStreamCreateWithPriority(
            ctypes.byref(stream), ctypes.c_uint(_NON_BLOCKING), ctypes.c_int(priority)
        )
        if error:
            raise StartupError(
                f"no CUDA stream of priority {priority} on device {device_id} (CUDA error {error})"
            )
        return stream.value or 0


def find_runtime(load: Callable[[str], Any] = ctypes.CDLL) -> CudaRuntime | None:
    """The runtime library, or None where there is none."""
    for major in MAJOR_VERSIONS:
        try:
            return CudaRuntime(load(f"libcudart.so.{major}" + (".0" if major == 11 else "")))
        except OSError:
            continue
    return None
