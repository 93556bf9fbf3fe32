from __future__ import annotations

import os
from pathlib import Path

import pytest

from gateway.commands.exits import CommandError, ExitCode
from gateway.commands.out_file import check_not_source, check_out_file, check_video_file

pytestmark = pytest.mark.unit


def test_file_that_can_be_written_passes_and_leaves_no_trace(tmp_path: Path) -> None:
    new, old = tmp_path / "new.mp4", tmp_path / "old.mp4"
    old.write_bytes(b"kept")
    assert check_out_file(None) is None
    assert check_out_file(new) == new
    assert check_out_file(old) == old
    assert not new.exists()
    assert old.read_bytes() == b"kept"


@pytest.mark.parametrize("name", ["out", "out.avi"])
def test_file_of_another_kind_is_refused(tmp_path: Path, name: str) -> None:
    with pytest.raises(CommandError, match=r"--out: .* is to be an MP4 file, NAME\.mp4") as caught:
        check_video_file(tmp_path / name)
    assert caught.value.code is ExitCode.USAGE
    assert not (tmp_path / name).exists()


@pytest.mark.parametrize("name", ["gone/out.mp4", "."])
def test_file_that_cannot_be_written_is_named_with_the_option(tmp_path: Path, name: str) -> None:
    with pytest.raises(CommandError, match=r"--out: cannot write .*: ") as caught:
        check_out_file(tmp_path / name)
    assert caught.value.code is ExitCode.USAGE


def _spelled(tmp_path: Path) -> dict[str, Path]:
    (tmp_path / "link.mp4").symlink_to("clip.mp4")
    os.link(tmp_path / "clip.mp4", tmp_path / "twin.mp4")
    return {
        "same": tmp_path / "clip.mp4",
        "relative": Path(os.path.relpath(tmp_path / "clip.mp4")),
        "dots": tmp_path / ".." / tmp_path.name / "clip.mp4",
        "symbolic link": tmp_path / "link.mp4",
        "hard link": tmp_path / "twin.mp4",
    }


@pytest.mark.parametrize("spelling", ["same", "relative", "dots", "symbolic link", "hard link"])
def test_source_is_never_the_file_that_is_written(tmp_path: Path, spelling: str) -> None:
    (tmp_path / "clip.mp4").write_bytes(b"clip")
    out = _spelled(tmp_path)[spelling]
    with pytest.raises(CommandError) as caught:
        check_not_source(out, str(tmp_path / "clip.mp4"))
    assert caught.value.code is ExitCode.USAGE
    assert str(caught.value) == f"--out: {out} is the source itself"


def test_source_below_the_home_directory_is_recognized(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    (tmp_path / "clip.mp4").write_bytes(b"clip")
    with pytest.raises(CommandError, match="is the source itself"):
        check_not_source(tmp_path / "clip.mp4", "~/clip.mp4")


@pytest.mark.parametrize("source", ["other.mp4", "0", "gone.mp4", f"rtsp://camera/{'a' * 300}"])
def test_other_sources_pass(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, source: str) -> None:
    monkeypatch.chdir(tmp_path)
    for name in ("clip.mp4", "other.mp4"):
        Path(name).write_bytes(b"clip")
    check_not_source(Path("clip.mp4"), source)
    check_not_source(Path("new.mp4"), source)
    check_not_source(None, "clip.mp4")
