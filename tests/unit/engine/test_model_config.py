"""What a model's configuration refuses; docs/configuration.md says what the keys mean."""

from __future__ import annotations

from typing import Any

import pytest

from engine.config import GpuConfig, ModelConfig
from gateway.config import parse_config
from gateway.errors import ConfigError

pytestmark = pytest.mark.unit

CUDA = {"execution_providers": ("CUDAExecutionProvider",)}


@pytest.mark.parametrize(
    ("keys", "words"),
    [
        ({"min_workers": 3, "max_workers": 2}, "min_workers must be <= max_workers"),
        ({"max_worker_memory_mb": -1}, "max_worker_memory_mb must be >= 0"),
        ({"stall_floor_s": 0}, "stall_floor_s must be > 0"),
        ({"scale_queue_age_millis": 0}, "scale_queue_age_millis must be > 0"),
        ({"trial_s": -1}, "trial_s must be >= 0"),
        ({"versions": ()}, "versions must be latest, all or numbers"),
        ({"versions": ("latest", "3")}, "versions must be latest, all or numbers"),
        ({"versions": ("3", "3")}, "versions must differ"),
        ({"variants": ()}, "variants must be of fp32, fp16, int8"),
        ({"variants": ("fp64",)}, "variants must be of fp32, fp16, int8"),
        ({"gpu_device_id": -1}, "gpu_device_id must be >= 0"),
        ({"gpu_memory_limit_mb": -1}, "gpu_memory_limit_mb must be >= 0"),
        ({"cuda_streams": 0}, "cuda_streams must be >= 1"),
        ({"cuda_streams": 9}, "cuda_streams must be <= 8"),
        ({"cuda_streams": 2}, "execution_providers must begin with CUDA"),
        ({"gpu_device_id": 1}, "execution_providers must begin with CUDA"),
        ({"tensorrt_fp16": True, **CUDA}, "tensorrt_fp16 needs Tensorrt"),
    ],
)
def test_what_makes_no_sense_is_refused_by_name(keys: dict[str, Any], words: str) -> None:
    with pytest.raises(ValueError, match=words):
        ModelConfig(**keys)


def test_what_a_session_on_a_gpu_needs_is_together() -> None:
    config = ModelConfig(
        gpu_device_id=1,
        gpu_memory_limit_mb=512,
        cuda_streams=2,
        cuda_stream_priority=-1,
        **CUDA,  # type: ignore[arg-type]
    )
    assert config.gpu == GpuConfig(device_id=1, memory_limit_mb=512, stream_priority=-1)


def test_workers_is_a_fixed_number_until_there_is_a_maximum() -> None:
    fixed = ModelConfig(workers=3, min_workers=2)
    assert (fixed.first_workers, fixed.most_workers) == (3, 3)
    scaled = ModelConfig(workers=3, min_workers=2, max_workers=5)
    assert (scaled.first_workers, scaled.most_workers) == (2, 5)


def test_versions_may_be_written_as_numbers_and_lists_as_text() -> None:
    def serving(**keys: Any) -> ModelConfig:
        return parse_config({"models": {"m": keys}}).models["m"].serving

    assert serving(versions=[3, 4]).versions == ("3", "4")
    assert serving(versions="all").versions == ("all",)
    assert serving(variants="fp32,int8").variants == ("fp32", "int8")
    with pytest.raises(ConfigError, match=r"models\.m\.max_workers: must be <= 64"):
        serving(max_workers=65)
