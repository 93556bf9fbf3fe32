from __future__ import annotations

import re
from importlib.util import find_spec
from pathlib import Path, PurePosixPath

import pytest

from engine.errors import UnknownModel
from engine.models.catalog import CHAT, DEFAULT_MODEL, Source, load_catalog

pytestmark = pytest.mark.unit


def _sources() -> list[Source]:
    catalog = load_catalog()
    models = [source for entry in catalog.models.values() for source in entry.sources.values()]
    return models + [clip.source for clip in catalog.clips.values()]


def test_catalogue_has_the_models_and_clips_of_the_demo() -> None:
    catalog = load_catalog()
    assert set(catalog.models) == {"centerface", "efficientnet-lite0", "smollm2-135m"}
    assert set(catalog.clips) == {"face", "street"}
    assert DEFAULT_MODEL in catalog.models


@pytest.mark.parametrize("source", _sources(), ids=lambda source: PurePosixPath(source.file).name)
def test_every_source_is_pinned_and_hashed(source: Source) -> None:
    assert re.fullmatch(r"pypi:[a-z0-9-]+==[0-9.]+", source.source)
    assert re.fullmatch(r"[0-9a-f]{64}", source.sha256)
    assert source.size > 0
    assert source.download_bytes > 0


@pytest.mark.parametrize("name", sorted(load_catalog().models))
def test_every_model_has_a_licence_an_importer_and_an_input(name: str) -> None:
    entry = load_catalog().model(name)
    assert entry.licence
    assert entry.description
    assert find_spec(f"engine.models.importers.{entry.importer}") is not None
    assert "model" in entry.sources
    assert entry.download_bytes == sum(s.download_bytes for s in entry.sources.values())
    assert (entry.input is None) == (entry.kind == CHAT)


def test_unknown_names_are_refused_with_the_known_ones() -> None:
    catalog = load_catalog()
    with pytest.raises(UnknownModel, match=r"'yolo'.*centerface, efficientnet-lite0"):
        catalog.model("yolo")
    with pytest.raises(UnknownModel, match=r"'cat'.*face, street"):
        catalog.clip("cat")


def test_name_that_is_a_file_or_folder_is_told_how_to_name_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("yolo.pt").touch()
    Path("smol").mkdir()
    catalog = load_catalog()
    for name, hint in (("yolo.pt", "the file is ./yolo.pt"), ("smol", "the folder is ./smol")):
        with pytest.raises(UnknownModel, match=rf"which has: .*; {hint}$"):
            catalog.model(name)
    for name in ("", "gone", "a" * 300):
        with pytest.raises(UnknownModel, match=r"smollm2-135m$"):
            catalog.model(name)
