from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from engine.api import TENSOR_PIPELINE, decode, find_manifest
from engine.manifest import Manifest
from engine.tensors import pack
from engine.types import Attachment, AttachmentKind, Result

pytestmark = pytest.mark.unit


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
    with pytest.raises(FileNotFoundError, match=r"nothing\.onnx does not exist"):
        find_manifest(tmp_path / "nothing.onnx", None)


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
