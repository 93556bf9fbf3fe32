from __future__ import annotations

from pathlib import Path

import msgspec
import pytest

from engine.errors import UnknownModel
from engine.manifest import Manifest
from engine.models import store as store_module
from engine.models.errors import MissingModel, MissingPackage
from engine.models.store import ModelStore, default_home, is_file_reference
from tests.fakes.networks import EMPTY_NETWORK

pytestmark = pytest.mark.unit


def _install(home: Path, name: str, version: str = "1") -> Path:
    directory = home / "models" / name / version
    directory.mkdir(parents=True)
    manifest = Manifest(name=name, version=version, kind="faces", files={"model": "model.onnx"})
    (directory / "manifest.json").write_bytes(msgspec.json.encode(manifest))
    (directory / "model.onnx").write_bytes(b"onnx")
    return directory


def test_missing_model_says_the_command_that_gets_it(tmp_path: Path) -> None:
    store = ModelStore(tmp_path)
    with pytest.raises(MissingModel, match=r"clawstream models pull centerface"):
        store.resolve("centerface")
    with pytest.raises(MissingModel, match=r"clawstream models pull face"):
        store.clip_path("face")


def test_unknown_names_are_refused(tmp_path: Path) -> None:
    store = ModelStore(tmp_path)
    with pytest.raises(UnknownModel):
        store.resolve("nothing")
    with pytest.raises(UnknownModel):
        store.clip_path("nothing")
    with pytest.raises(UnknownModel):
        store.pull("nothing")
    with pytest.raises(UnknownModel):
        store.pull_clip("nothing")


def test_installed_model_resolves_to_absolute_paths(tmp_path: Path) -> None:
    directory = _install(tmp_path, "centerface")
    manifest = ModelStore(tmp_path).resolve("centerface")
    assert manifest.files == {"model": str(directory / "model.onnx")}


def test_cache_can_be_moved(tmp_path: Path) -> None:
    _install(tmp_path / "before", "centerface")
    (tmp_path / "before").rename(tmp_path / "after")
    manifest = ModelStore(tmp_path / "after").resolve("centerface")
    assert manifest.files["model"].startswith(str(tmp_path / "after"))


def test_installed_items_are_pulled_without_any_download(tmp_path: Path) -> None:
    _install(tmp_path, "centerface")
    (tmp_path / "clips").mkdir()
    (tmp_path / "clips" / "face.mp4").write_bytes(b"clip")
    store = ModelStore(tmp_path)
    reports: list[str] = []
    store.pull("centerface", lambda done, total, stage: reports.append(stage))
    assert store.pull_clip("face") == tmp_path / "clips" / "face.mp4"
    assert reports == []
    assert not (tmp_path / "staging").exists()


@pytest.mark.parametrize("damage", ["model.onnx", "manifest.json", "garbage"])
def test_incomplete_model_counts_as_missing(tmp_path: Path, damage: str) -> None:
    directory = _install(tmp_path, "centerface")
    if damage == "garbage":
        (directory / "manifest.json").write_bytes(b"{")
    else:
        (directory / damage).unlink()
    with pytest.raises(MissingModel):
        ModelStore(tmp_path).resolve("centerface")


def test_another_version_does_not_stand_in(tmp_path: Path) -> None:
    _install(tmp_path, "centerface", version="0")
    with pytest.raises(MissingModel):
        ModelStore(tmp_path).resolve("centerface")


def test_list_shows_what_is_there_and_what_is_not(tmp_path: Path) -> None:
    directory = _install(tmp_path, "centerface")
    paths = {item.name: item.path for item in ModelStore(tmp_path).list()}
    assert paths == {
        "centerface": directory,
        "efficientnet-lite0": None,
        "smollm2-135m": None,
        "face": None,
        "street": None,
    }


def test_files_are_told_from_names(tmp_path: Path) -> None:
    assert not is_file_reference("centerface")
    assert is_file_reference("model.onnx")
    assert is_file_reference("models/mine")
    assert is_file_reference("file:mine")
    (tmp_path / "mine.onnx").write_bytes(EMPTY_NETWORK)
    store = ModelStore(tmp_path / "home")
    assert store.resolve(f"file:{tmp_path}/mine.onnx").name == "mine"
    assert store.resolve(f"{tmp_path}/mine.onnx").name == "mine"


def test_home_comes_from_the_environment_or_the_platform(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CLAWSTREAM_HOME", str(tmp_path))
    assert default_home() == tmp_path
    monkeypatch.delenv("CLAWSTREAM_HOME")
    assert default_home().name == "clawstream"


def test_missing_package_is_told_before_anything_is_downloaded(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(store_module, "find_spec", lambda name: None if name == "gguf" else name)
    told = r"needs the package gguf: pip install 'clawstream\[llm\]'"
    with pytest.raises(MissingPackage, match=told):
        ModelStore(tmp_path).pull("smollm2-135m")
    assert not (tmp_path / "staging").exists()
