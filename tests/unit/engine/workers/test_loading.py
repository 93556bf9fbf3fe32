from __future__ import annotations

import pytest

from engine.errors import StartupError
from engine.workers.loading import import_factory, prepare_sizes, warm_up, warm_up_sizes
from tests.fakes.pipelines import Echo, build_echo

pytestmark = pytest.mark.unit


class CountingEcho(Echo):
    def __init__(self) -> None:
        self.sizes: list[int] = []

    def warm_up(self, batch_size: int) -> None:
        self.sizes.append(batch_size)


@pytest.mark.parametrize(
    ("largest", "sizes"), [(1, [1]), (2, [1, 2]), (6, [1, 2, 4, 6]), (8, [1, 2, 4, 8])]
)
def test_sizes_double_up_to_the_largest(largest: int, sizes: list[int]) -> None:
    assert warm_up_sizes(largest) == sizes


def test_every_size_is_run_once_uncounted_and_then_measured() -> None:
    pipeline = CountingEcho()
    measured = warm_up(pipeline, 4)
    assert list(measured) == [1, 2, 4]
    assert pipeline.sizes == [1] * 4 + [2] * 4 + [4] * 4


def test_what_was_measured_before_is_taken_over_after_one_run() -> None:
    pipeline = CountingEcho()
    assert warm_up(pipeline, 8, {1: 0.25, 2: 0.5}) == {1: 0.25, 2: 0.5}
    assert pipeline.sizes == [1]


def test_without_budget_only_single_items_are_measured() -> None:
    pipeline = CountingEcho()
    assert list(warm_up(pipeline, 64, budget_s=0.0)) == [1]
    assert pipeline.sizes == [1, 1]


def test_a_factory_is_imported_by_name() -> None:
    assert import_factory("tests.fakes.pipelines:build_echo").__name__ == build_echo.__name__  # type: ignore[attr-defined]


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("pipelines", "module:factory"),
        (":build", "module:factory"),
        ("no_such_module:build", "No module named 'no_such_module'"),
        ("tests.fakes.pipelines:nothing", "no callable 'nothing'"),
        ("tests.fakes.pipelines:HANG_S", "no callable"),
    ],
)
def test_what_cannot_be_imported_is_explained(name: str, words: str) -> None:
    with pytest.raises(StartupError, match=words):
        import_factory(name)


def test_an_accelerator_runs_every_size_whatever_it_takes() -> None:
    pipeline = CountingEcho()
    prepare_sizes(pipeline, 6)
    assert pipeline.sizes == [1, 2, 4, 6]
