"""The runtime's calls, on a library that writes down what it is asked."""

from __future__ import annotations

import ctypes
from typing import Any

import pytest

from engine.errors import StartupError
from engine.onnx.cudart import CudaRuntime, find_runtime

pytestmark = pytest.mark.unit


class Library:
    """libcudart as ctypes sees it; ``errors`` are what calls return, 0 by default."""

    def __init__(self, **errors: int) -> None:
        self.calls: list[str] = []
        self._errors = errors

    def __getattr__(self, name: str) -> Any:
        def call(*arguments: Any) -> int:
            values = [getattr(argument, "value", None) for argument in arguments]
            self.calls.append(f"{name}{values}")
            if name == "cudaStreamCreateWithPriority":
                arguments[0]._obj.value = 4242
            return self._errors.get(name, 0)

        return call


def test_memory_is_pinned_for_every_device_and_unpinned() -> None:
    library = Library()
    runtime = CudaRuntime(library)
    assert runtime.try_pin(4096, 8192)
    runtime.unpin(4096)
    assert library.calls == ["cudaHostRegister[4096, 8192, 1]", "cudaHostUnregister[4096]"]


def test_memory_that_cannot_be_pinned_is_said(caplog: pytest.LogCaptureFixture) -> None:
    assert not CudaRuntime(Library(cudaHostRegister=2)).try_pin(4096, 8192)
    assert "8192 bytes could not be pinned (CUDA error 2)" in caplog.text


def test_a_stream_has_its_priority_on_its_device() -> None:
    library = Library()
    assert CudaRuntime(library).create_stream(1, -5) == 4242
    assert library.calls == ["cudaSetDevice[1]", "cudaStreamCreateWithPriority[None, 1, -5]"]


@pytest.mark.parametrize("call", ["cudaSetDevice", "cudaStreamCreateWithPriority"])
def test_a_stream_that_cannot_be_made_stops_the_start(call: str) -> None:
    with pytest.raises(StartupError, match=r"priority -5 on device 1 \(CUDA error 101\)"):
        CudaRuntime(Library(**{call: 101})).create_stream(1, -5)


def test_the_newest_runtime_that_is_there_is_taken() -> None:
    tried = []

    def load(name: str) -> Any:
        tried.append(name)
        if name != "libcudart.so.12":
            raise OSError(name)
        return ctypes

    assert find_runtime(load) is not None
    assert tried == ["libcudart.so.13", "libcudart.so.12"]


def test_no_runtime_is_none() -> None:
    def load(name: str) -> Any:
        raise OSError(name)

    assert find_runtime(load) is None
