from __future__ import annotations

from pathlib import Path

import pytest

from engine.config import GpuConfig
from engine.errors import StartupError
from engine.onnx.providers import (
    CPU,
    CUDA,
    check_available,
    check_in_use,
    check_installed,
    cuda_options,
    is_strict,
    tensorrt_options,
)

pytestmark = pytest.mark.unit


def test_cuda_does_not_search_algorithms_for_each_new_shape() -> None:
    assert cuda_options(GpuConfig(), stream=0) == {
        "device_id": "0",
        "cudnn_conv_algo_search": "HEURISTIC",
        "arena_extend_strategy": "kSameAsRequested",
        "do_copy_in_default_stream": "1",
    }


def test_device_limit_and_stream_reach_cuda() -> None:
    options = cuda_options(GpuConfig(device_id=2, memory_limit_mb=3), stream=77)
    assert (options["device_id"], options["gpu_mem_limit"]) == ("2", str(3 << 20))
    assert (options["has_user_compute_stream"], options["user_compute_stream"]) == ("1", "77")


def test_tensorrt_keeps_engines_and_timings_and_knows_its_shapes() -> None:
    gpu = GpuConfig(tensorrt_fp16=True, memory_limit_mb=5)
    options = tensorrt_options(gpu, 0, Path("engines/abc"), {"trt_profile_min_shapes": "x:1x4"})
    assert options == {
        "device_id": "0",
        "trt_engine_cache_enable": "1",
        "trt_engine_cache_path": "engines/abc",
        "trt_timing_cache_enable": "1",
        "trt_timing_cache_path": "engines/abc",
        "trt_fp16_enable": "1",
        "trt_profile_min_shapes": "x:1x4",
        "trt_max_workspace_size": str(5 << 20),
    }
    assert tensorrt_options(GpuConfig(), 0, Path("e"), {})["trt_fp16_enable"] == "0"


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
    with pytest.raises(StartupError, match=f"although {CUDA} is configured: its driver"):
        check_in_use([CUDA], in_use)
    with pytest.raises(StartupError, match=r"configured: no libcudnn\.so\.9; install"):
        check_in_use([CUDA], in_use, "no libcudnn.so.9")
