"""What is missing, on machines that are made up."""

from __future__ import annotations

from typing import Any

import pytest

from engine.onnx.diagnosis import CUDA, TENSORRT, find_missing

pytestmark = pytest.mark.unit


class Driver:
    def __init__(self, error: int = 0, devices: int = 1) -> None:
        self._error = error
        self._devices = devices

    def cuInit(self, flags: int) -> int:
        return self._error

    def cuDeviceGetCount(self, count: Any) -> int:
        count._obj.value = self._devices
        return 0


class Machine:
    """Loads every library but ``without``."""

    def __init__(self, *without: str, driver: Driver | None = None) -> None:
        self.loaded: list[str] = []
        self._without = without
        self._driver = driver or Driver()

    def load(self, name: str) -> Any:
        if name in self._without:
            raise OSError(f"{name}: cannot open shared object file")
        self.loaded.append(name)
        return self._driver


@pytest.mark.parametrize(
    ("machine", "words"),
    [
        (Machine("libcuda.so.1"), "driver (libcuda.so.1) is not installed"),
        (Machine(driver=Driver(error=100)), "cuInit says 100"),
        (Machine(driver=Driver(devices=0)), "sees no device"),
        (Machine("libcublasLt.so.12"), "libcublasLt.so.12 is not found: install CUDA 12"),
        (Machine("libcudnn.so.9"), "libcudnn.so.9 is not found: install cuDNN 9 for CUDA 12"),
    ],
)
def test_the_first_missing_piece_is_named(machine: Machine, words: str) -> None:
    assert words in find_missing(CUDA, "12.8", machine.load)


def test_nothing_is_said_where_everything_is_there() -> None:
    machine = Machine()
    assert find_missing(TENSORRT, "12.8", machine.load) == ""
    assert machine.loaded[-1] == "libnvinfer.so.10"


def test_libraries_are_those_of_the_build() -> None:
    machine = Machine()
    find_missing(CUDA, "13.0", machine.load)
    assert "libcudart.so.13" in machine.loaded
    assert "libcufft.so.12" in machine.loaded
    assert "libnvinfer.so.10" not in machine.loaded


def test_other_providers_are_not_looked_into() -> None:
    assert find_missing("CPUExecutionProvider", "", Machine("libcuda.so.1").load) == ""
