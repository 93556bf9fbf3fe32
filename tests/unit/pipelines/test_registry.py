from __future__ import annotations

from typing import Any

import cv2
import numpy as np
import pytest
from numpy.typing import NDArray

from engine.errors import StartupError
from engine.manifest import PIPELINE_KINDS, InputSpec, Manifest
from pipelines import registry
from tests.fakes.onnx_resources import FunctionResources, FunctionSession

pytestmark = pytest.mark.unit


def manifest(kind: str) -> Manifest:
    return Manifest(
        name="m",
        kind=kind,
        files={"model": "m.onnx"},
        input=InputSpec(width=64, height=32),
    )


def outputs_of(kind: str, batch: int) -> list[NDArray[Any]]:
    if kind == "faces":
        return [np.zeros((batch, channels, 8, 16), np.float32) for channels in (1, 2, 2, 10)]
    shape = (batch, 10) if kind == "classify" else (batch, 7, 42)
    return [np.zeros(shape, np.float32)]


@pytest.mark.parametrize("kind", PIPELINE_KINDS)
def test_every_kind_is_built_and_warms_up(kind: str) -> None:
    session = FunctionSession(
        lambda images: outputs_of(kind, len(images)), num_outputs=4 if kind == "faces" else 1
    )
    registry.build(manifest(kind), FunctionResources(session)).warm_up(2)
    assert session.ran == [(2, 3, 32, 64)]


@pytest.mark.parametrize("kind", ["", "segment"])
def test_unknown_kind_stops_the_start_and_lists_the_known(kind: str) -> None:
    resources = FunctionResources(FunctionSession(lambda images: []))
    with pytest.raises(StartupError, match="faces, classify, detect"):
        registry.build(manifest(kind), resources)


def test_opencv_uses_the_callers_thread_only() -> None:
    session = FunctionSession(lambda images: outputs_of("classify", len(images)))
    registry.build(manifest("classify"), FunctionResources(session))
    assert cv2.getNumThreads() == 1


def test_the_kinds_that_a_description_may_name_are_those_that_are_built() -> None:
    assert tuple(registry._KINDS) == PIPELINE_KINDS
