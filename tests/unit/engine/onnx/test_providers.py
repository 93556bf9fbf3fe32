from __future__ import annotations

import pytest

from engine.errors import StartupError
from engine.onnx.providers import (
    CPU,
    check_available,
    check_in_use,
    check_installed,
    is_strict,
    provider_options,
)

pytestmark = pytest.mark.unit

CUDA = "CUDAExecutionProvider"


def test_cuda_does_not_search_algorithms_for_each_new_shape() -> None:
    options = dict(provider_options([CUDA, CPU]))
    assert options[CUDA]["cudnn_conv_algo_search"] == "HEURISTIC"
    assert options[CPU] == {}


def test_the_cpu_may_help_out_only_where_it_is_named() -> None:
    assert is_strict([CUDA])
    assert not is_strict([CUDA, CPU])
    assert not is_strict([CPU])


@pytest.mark.parametrize(
    ("packages", "words"),
    [([], "not installed: pip install"), (["onnxruntime", "onnxruntime-gpu"], "overwrite")],
)
def test_exactly_one_build_must_be_installed(packages: list[str], words: str) -> None:
    check_installed(["onnxruntime"])
    with pytest.raises(StartupError, match=words):
        check_installed(packages)


def test_a_provider_that_the_build_lacks_is_named_with_its_remedy() -> None:
    check_available([CPU], [CPU])
    with pytest.raises(StartupError, match=f"{CUDA} .*it has {CPU}.*install onnxruntime-gpu"):
        check_available([CUDA], [CPU])
    with pytest.raises(StartupError, match="install a build that has it"):
        check_available(["MadeUpExecutionProvider"], [CPU])


@pytest.mark.parametrize("in_use", [[CPU], []])
def test_a_silent_fall_back_is_an_error(in_use: list[str]) -> None:
    check_in_use([CUDA], [CUDA, CPU])
    with pytest.raises(StartupError, match=f"although {CUDA} is configured"):
        check_in_use([CUDA], in_use)
