"""What is built from a model and its options, and the whole way on the CPU."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from engine.config import GpuConfig
from engine.errors import StartupError
from engine.manifest import InputSpec
from engine.onnx import accelerated
from engine.onnx.accelerated import Accelerator, engine_folder, open_accelerated
from engine.onnx.cudart import CudaRuntime
from engine.onnx.providers import CPU, CUDA, TENSORRT
from engine.workers.loading import WorkerResources
from tests.fakes.networks import save_classifier, save_matmul
from tests.unit.engine.onnx.test_cudart import Library

pytestmark = pytest.mark.unit

SPEC = InputSpec(width=8, height=8)


def accelerator(tmp_path: Path, *providers: str, **gpu: Any) -> Accelerator:
    return Accelerator(
        providers=providers, gpu=GpuConfig(**gpu), sizes=(1, 2, 4), engines=tmp_path / "engines"
    )


def options_of(
    path: Path, given: Accelerator, picture: InputSpec | None = None, library: Any = None
) -> dict[str, dict[str, str]]:
    runtime = CudaRuntime(library) if library is not None else None
    return dict(accelerated._providers(accelerated._Model(path, picture), given, runtime))


def test_tensorrt_gets_the_batch_sizes_and_a_folder_for_its_engines(tmp_path: Path) -> None:
    path = save_classifier(tmp_path / "n.onnx", size=8, classes=2)
    options = options_of(path, accelerator(tmp_path, TENSORRT, CUDA, CPU), SPEC)
    assert list(options) == [TENSORRT, CUDA, CPU]
    found = options[TENSORRT]
    assert found["trt_profile_max_shapes"] == "pixels:4x8x8x3,images:4x3x8x8"
    assert Path(found["trt_engine_cache_path"]).is_dir()
    assert options[CPU] == {}


def test_engines_are_apart_by_network_precision_and_largest_batch(tmp_path: Path) -> None:
    paths = [save_classifier(tmp_path / f"{n}.onnx", size=8, classes=n) for n in (2, 3)]
    folders = {
        options_of(path, given, SPEC)[TENSORRT]["trt_engine_cache_path"]
        for path in paths
        for given in (
            accelerator(tmp_path, TENSORRT),
            accelerator(tmp_path, TENSORRT, tensorrt_fp16=True),
        )
    }
    assert len(folders) == 4
    again = accelerated._Model(paths[0], SPEC).digest()
    assert str(engine_folder(accelerator(tmp_path, TENSORRT), again)) in folders


def test_a_folder_that_cannot_be_made_stops_the_start(tmp_path: Path) -> None:
    (tmp_path / "engines").write_text("in the way")
    with pytest.raises(StartupError, match="no folder for TensorRT's engines"):
        engine_folder(accelerator(tmp_path, TENSORRT), "abc")


def test_providers_of_a_session_share_a_stream_of_the_asked_priority(tmp_path: Path) -> None:
    path = save_matmul(tmp_path / "n.onnx")
    given = accelerator(tmp_path, TENSORRT, CUDA, stream_priority=-2)
    options = options_of(path, given, library=Library())
    assert {each["user_compute_stream"] for each in options.values()} == {"4242"}
    with pytest.raises(StartupError, match="cuda_stream_priority needs libcudart"):
        options_of(path, given)


def test_without_a_priority_the_session_makes_its_own_stream(tmp_path: Path) -> None:
    options = options_of(save_matmul(tmp_path / "n.onnx"), accelerator(tmp_path, CUDA))
    assert "user_compute_stream" not in options[CUDA]


@pytest.mark.parametrize("provider", [CUDA, TENSORRT])
def test_a_worker_without_the_build_says_what_to_install(provider: str, tmp_path: Path) -> None:
    resources = WorkerResources((provider,), 1)
    assert resources.is_accelerated
    path = save_matmul(tmp_path / "n.onnx")
    with pytest.raises(StartupError, match=f"{provider} is not in this build .*onnxruntime-gpu"):
        resources.open_session(path)


def test_fp16_that_is_too_far_off_is_refused_with_the_file_and_the_difference(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = save_classifier(tmp_path / "n.onnx", size=8, classes=2)
    session = open_accelerated(path, accelerator(tmp_path, CPU), SPEC)
    accelerated._check_fp16(session, accelerated._Model(path, SPEC))
    plain_run = session.run
    monkeypatch.setattr(
        session, "run", lambda inputs: {k: v * 1.5 for k, v in plain_run(inputs).items()}
    )
    with pytest.raises(StartupError, match=r"n\.onnx in fp16: output 'scores' is 50 % off fp32"):
        accelerated._check_fp16(session, accelerated._Model(path, SPEC))


def test_the_whole_way_runs_on_the_cpu(tmp_path: Path) -> None:
    path = save_classifier(tmp_path / "n.onnx", size=8, classes=2)
    session = open_accelerated(path, accelerator(tmp_path, CPU), SPEC)
    session.allow_padding()
    pixels = np.zeros((3, 8, 8, 3), np.uint8)
    assert session.run({"pixels": session.stack(list(pixels))})["scores"].shape == (3, 2)
    assert not (tmp_path / "engines").exists()
