from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any, cast

import numpy as np
import pytest

from engine.api import TENSOR_PIPELINE, Model, decode, find_manifest, load_model
from engine.api_thread import EngineThread
from engine.config import GpuConfig, ModelConfig
from engine.errors import StartupError
from engine.manifest import Manifest
from engine.tensors import pack
from engine.types import Attachment, AttachmentKind, Result

pytestmark = pytest.mark.unit

CUDA = ("CUDAExecutionProvider",)


def test_an_onnx_file_takes_tensors(tmp_path: Path) -> None:
    path = tmp_path / "net.onnx"
    path.touch()
    manifest = find_manifest(path, None)
    assert (manifest.name, manifest.pipeline) == ("net", TENSOR_PIPELINE)
    assert manifest.files == {"model": str(path)}


def test_a_pipeline_can_be_named(tmp_path: Path) -> None:
    path = tmp_path / "net.onnx"
    path.touch()
    assert find_manifest(str(path), "my.module:Pipeline").pipeline == "my.module:Pipeline"
    manifest = Manifest(name="m", pipeline="a:b")
    assert find_manifest(manifest, None) is manifest
    assert find_manifest(manifest, "c:d") == Manifest(name="m", pipeline="c:d")


def test_a_missing_file_is_named(tmp_path: Path) -> None:
    with pytest.raises(StartupError, match=r"nothing\.onnx does not exist"):
        find_manifest(tmp_path / "nothing.onnx", None)


class StartedThread:
    """Stands for an engine's thread; keeps what it was started with."""

    def __init__(self, manifest: Manifest, config: ModelConfig) -> None:
        self.config = config

    def close(self) -> None:
        """Nothing runs."""


def started_with(monkeypatch: pytest.MonkeyPatch, **options: Any) -> tuple[ModelConfig, Model]:
    monkeypatch.setattr(EngineThread, "start", StartedThread)
    model = load_model(Manifest(name="m", pipeline="a:b"), **options)
    return cast("StartedThread", model._thread).config, model


def test_the_options_of_a_gpu_are_those_of_the_configuration(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    options: dict[str, Any] = {
        "execution_providers": ("TensorrtExecutionProvider", "CUDAExecutionProvider"),
        "gpu_device_id": 1,
        "gpu_memory_limit_mb": 2048,
        "cuda_streams": 3,
        "cuda_stream_priority": -1,
        "tensorrt_fp16": True,
    }
    config, _ = started_with(monkeypatch, **options)
    assert {name: getattr(config, name) for name in options} == options
    assert started_with(monkeypatch)[0].gpu == GpuConfig()


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({"gpu_device_id": 1}, "execution_providers must begin with CUDA"),
        ({"cuda_streams": 2}, "execution_providers must begin with CUDA"),
        ({"execution_providers": CUDA, "gpu_device_id": -1}, "gpu_device_id must be >= 0"),
        ({"execution_providers": CUDA, "gpu_memory_limit_mb": -1}, "gpu_memory_limit_mb must be"),
        ({"execution_providers": CUDA, "cuda_streams": 9}, "cuda_streams must be <= 8, got 9"),
        ({"execution_providers": CUDA, "tensorrt_fp16": True}, "tensorrt_fp16 needs Tensorrt"),
    ],
)
def test_options_that_do_not_fit_are_named_before_anything_starts(
    options: dict[str, Any], says: str
) -> None:
    with pytest.raises(ValueError, match=says):
        load_model(Manifest(name="m", pipeline="a:b"), **options)


def test_a_stream_reads_ahead_for_every_session(monkeypatch: pytest.MonkeyPatch) -> None:
    options: dict[str, Any] = {"max_batch_size": 4, "workers": 2}
    assert started_with(monkeypatch, **options)[1]._look_ahead == 16
    options |= {"execution_providers": CUDA, "cuda_streams": 3}
    assert started_with(monkeypatch, **options)[1]._look_ahead == 32


def result(**arrays: list[float]) -> Result:
    packed = pack({name: np.array(values) for name, values in arrays.items()})
    attachment = Attachment(kind=AttachmentKind.TENSORS, meta=packed.meta, payload=packed.payload)
    return Result(data=packed.meta, model="m", version="1", attachments=(attachment,))


def test_one_output_is_an_array_that_may_be_changed() -> None:
    array = decode(result(y=[1.0, 2.0]))
    array += 1.0
    assert array.tolist() == [2.0, 3.0]


def test_several_outputs_are_arrays_by_name() -> None:
    arrays = decode(result(a=[1.0], b=[2.0]))
    assert {name: array.tolist() for name, array in arrays.items()} == {"a": [1.0], "b": [2.0]}


def test_without_tensors_the_json_is_the_answer() -> None:
    picture = Attachment(kind=AttachmentKind.ANNOTATED_FRAME, meta=b"{}", payload=b"jpeg")
    answer = Result(data=b'{"objects":[]}', model="m", version="1", attachments=(picture,))
    assert decode(answer) == {"objects": []}


def test_importing_the_engine_imports_no_runtime() -> None:
    code = (
        "import sys, engine, engine.workers.process\n"
        "assert 'engine.api' not in sys.modules\n"
        "engine.load_model\n"
        "assert not {'onnxruntime', 'cv2', 'torch'} & sys.modules.keys()\n"
    )
    subprocess.run([sys.executable, "-c", code], check=True, timeout=30)


def test_the_package_has_no_other_lazy_names() -> None:
    import engine

    with pytest.raises(AttributeError, match="no attribute 'load_models'"):
        engine.load_models  # noqa: B018
