from __future__ import annotations

import types
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import pytest

from engine.workers.ranges import MarkedPipeline, find_mark
from tests.fakes.pipelines import Echo

pytestmark = pytest.mark.unit

LISTENS = {"NVTX_INJECTION64_PATH": "/opt/nsight/injection.so"}


class Ranges:
    """A mark that writes down what was opened."""

    def __init__(self) -> None:
        self.names: list[tuple[str, str]] = []

    def annotate(self, message: str, domain: str = "") -> AbstractContextManager[None]:
        self.names.append((message, domain))
        return nullcontext()


def test_nothing_is_loaded_without_a_profiler() -> None:
    def load(name: str) -> Any:
        raise AssertionError(name)

    assert find_mark({}, load) is None


def test_a_profiler_gets_ranges_in_our_domain() -> None:
    ranges = Ranges()
    mark = find_mark(LISTENS, lambda name: types.SimpleNamespace(annotate=ranges.annotate))
    assert mark is not None
    with mark("network"):
        pass
    assert ranges.names == [("network", "clawstream")]


def test_a_profiler_without_the_package_is_said(caplog: pytest.LogCaptureFixture) -> None:
    def load(name: str) -> Any:
        raise ModuleNotFoundError(name)

    assert find_mark(LISTENS, load) is None
    assert "pip install nvtx" in caplog.text


def test_every_stage_is_a_range_and_answers_as_before() -> None:
    ranges = Ranges()
    plain, pipeline = Echo(), MarkedPipeline(Echo(), ranges.annotate)
    pipeline.warm_up(2)
    outputs = []
    for each in (plain, pipeline):
        prepared = each.prepare(memoryview(b"abc"), b"", b"")
        (raw,) = each.run([prepared])
        outputs.append(each.interpret(prepared, raw, b""))
    assert outputs[0] == outputs[1]
    assert [name for name, _ in ranges.names] == ["warm up 2", "prepare", "run 1", "interpret"]
