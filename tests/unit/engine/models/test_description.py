from __future__ import annotations

from pathlib import Path

import pytest

from engine.models.description import load_model_file
from engine.models.errors import ManifestError, MissingModel
from tests.fakes.networks import EMPTY_NETWORK

pytestmark = pytest.mark.unit

YOLO = """
kind = "detect"
version = "8n"
labels = "coco.txt"
licence = "AGPL-3.0"

[input]
width = 640
height = 640
fit = "letterbox"
pad_value = 114
scale = [0.00392156862745098, 0.00392156862745098, 0.00392156862745098]

[options]
min_score = 0.25
"""


@pytest.fixture
def model_path(tmp_path: Path) -> Path:
    path = tmp_path / "yolov8n.onnx"
    path.write_bytes(EMPTY_NETWORK)
    return path


def _describe(model_path: Path, toml: str) -> None:
    model_path.with_suffix(".toml").write_text(toml)


def test_detector_export_is_described_by_toml_alone(model_path: Path) -> None:
    _describe(model_path, YOLO)
    (model_path.parent / "coco.txt").write_text("person\nbicycle\n\ntraffic light\n")
    manifest = load_model_file(model_path)
    assert manifest.name == "yolov8n"
    assert manifest.version == "8n"
    assert manifest.pipeline == "pipelines.registry:build"
    assert manifest.kind == "detect"
    assert manifest.files == {"model": str(model_path)}
    assert manifest.input is not None
    assert (manifest.input.width, manifest.input.pad_value) == (640, 114)
    assert manifest.labels == ("person", "bicycle", "traffic light")
    assert manifest.options == {"min_score": 0.25}


def test_file_without_toml_is_served_as_tensors(model_path: Path) -> None:
    manifest = load_model_file(model_path)
    assert manifest.pipeline == "engine.onnx.tensors:build"
    assert manifest.kind == "tensors"
    assert manifest.input is None


def test_relative_path_becomes_absolute(model_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(model_path.parent)
    assert load_model_file(Path("yolov8n.onnx")).files == {"model": str(model_path)}


def test_own_pipeline_is_named_by_module_and_factory(model_path: Path) -> None:
    _describe(model_path, 'name = "mine"\npipeline = "my.module:Pipeline"\n')
    manifest = load_model_file(model_path)
    assert (manifest.name, manifest.pipeline, manifest.kind) == ("mine", "my.module:Pipeline", "")


def test_labels_may_be_listed_or_read_from_json(model_path: Path) -> None:
    _describe(model_path, 'kind = "classify"\nlabels = ["cat", "dog"]\n')
    assert load_model_file(model_path).labels == ("cat", "dog")
    (model_path.parent / "names.json").write_text('["kite (bird of prey)", "eagle"]')
    _describe(model_path, 'kind = "classify"\nlabels = "names.json"\n')
    assert load_model_file(model_path).labels == ("kite (bird of prey)", "eagle")


@pytest.mark.parametrize(
    ("toml", "complaint"),
    [
        ("", "kind or pipeline: exactly one"),
        ('kind = "detect"\npipeline = "a:b"', "kind or pipeline: exactly one"),
        ('pipeline = "module.without.factory"', "pipeline: expected module:factory"),
        ('kind = "detect"\nthreshold = 1', "threshold: is not known$"),
        ('kind = "detect"\nlabel = ["a"]', r"label: is not known; did you mean labels\?$"),
        ('kind = "detct"', r"kind: must be one of faces, .*, got 'detct'; did you mean detect\?$"),
        ('kind = "detect"\n[input]\nwidth = 640', "input: .*missing required field `height`"),
        ('kind = "detect"\n[input]\nwidth = "x"\nheight = 1', "input.width: Expected `int`"),
        ('kind = "detect"\n[input]\nwidth = 0\nheight = 1', "input.width: Expected `int` >= 1"),
        (
            'kind = "detect"\n[input]\nwidth = 1\nheight = 1\nfit = "crop"',
            "input.fit: Invalid enum value 'crop'",
        ),
        ('kind = "detect"\n[input]\nwidth = 1\nheight = 1\ninterpolation = "x"', "interpolation"),
        ('kind = "detect"\n[input]\nwidth = 1\nheight = 1\ncrop_fraction = 2', "crop_fraction"),
        ('kind = "detect"\n[input]\nwidth = 1\nheight = 1\npad_value = 256', "pad_value"),
        ('kind = "detect"\n[input]\nwidth = 1\nheight = 1\nmean = [1]', "input.mean: "),
        ('kind = "detect"\nname = "a b"', "name must be letters"),
        ('kind = "detect"\nlabels = "none.txt"', "labels: cannot read .*none.txt"),
        ("kind = detect", "line 1"),
    ],
)
def test_wrong_description_names_the_file_and_the_key(
    model_path: Path, toml: str, complaint: str
) -> None:
    _describe(model_path, toml)
    with pytest.raises(ManifestError, match=rf"yolov8n\.toml: .*{complaint}"):
        load_model_file(model_path)


def test_label_file_that_is_not_a_list_is_refused(model_path: Path) -> None:
    _describe(model_path, 'kind = "classify"\nlabels = "names.json"\n')
    (model_path.parent / "names.json").write_text('{"0": "cat"}')
    with pytest.raises(ManifestError, match=r"labels: cannot read .*names\.json"):
        load_model_file(model_path)


def test_missing_and_foreign_files_are_refused(tmp_path: Path) -> None:
    with pytest.raises(MissingModel, match=r"there is no file .*none\.onnx"):
        load_model_file(tmp_path / "none.onnx")
    with pytest.raises(ManifestError, match=r"ends in \.onnx"):
        load_model_file(tmp_path / "model.pt")
    odd = tmp_path / "my model.onnx"
    odd.write_bytes(b"onnx")
    with pytest.raises(ManifestError, match=r"rename the file.*'my model'"):
        load_model_file(odd)


@pytest.mark.parametrize(
    "toml", [None, 'kind = "classify"', 'pipeline = "engine.onnx.tensors:build"']
)
@pytest.mark.parametrize("content", [b"", b"this is a text file\n", EMPTY_NETWORK[:3]])
def test_file_that_is_no_network_is_named(
    model_path: Path, toml: str | None, content: bytes
) -> None:
    model_path.write_bytes(content)
    if toml is not None:
        _describe(model_path, toml)
    with pytest.raises(ManifestError, match=r"yolov8n\.onnx: it is not an ONNX model"):
        load_model_file(model_path)


def test_own_pipeline_may_read_any_file(model_path: Path) -> None:
    model_path.write_bytes(b"anything")
    _describe(model_path, 'pipeline = "my.module:Pipeline"\n')
    assert load_model_file(model_path).pipeline == "my.module:Pipeline"


def test_folder_with_a_configuration_is_a_chat_model(tmp_path: Path) -> None:
    folder = tmp_path / "my-llama"
    folder.mkdir()
    (folder / "config.json").write_text("{}")
    manifest = load_model_file(folder)
    assert (manifest.name, manifest.kind) == ("my-llama", "chat")
    assert manifest.files == {"model": str(folder)}


def test_folder_without_a_configuration_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ManifestError):
        load_model_file(tmp_path)
