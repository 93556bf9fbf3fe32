"""A verdict outlives the process, and nothing that lies on the disk can do harm."""

from __future__ import annotations

from pathlib import Path

import pytest

from engine.models.verdicts import Verdict, VerdictFile, verdict_path

pytestmark = pytest.mark.unit

SLOW = Verdict(fingerprint="f1", reason="a batch of 1 takes 40.0 ms")


def test_what_is_written_is_read_and_no_other_file_is_left(tmp_path: Path) -> None:
    path = tmp_path / "not" / "there" / "yet.json"
    VerdictFile(path).write({"2": SLOW})
    assert VerdictFile(path).read() == {"2": SLOW}
    VerdictFile(path).write({})
    assert VerdictFile(path).read() == {}
    assert list(path.parent.iterdir()) == [path]


@pytest.mark.parametrize("content", [b"", b"half a fi", b"[]", b'{"2": {"reason": 1}}', b"\xff"])
def test_a_file_that_is_none_of_ours_holds_no_verdicts(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "file.json"
    assert VerdictFile(path).read() == {}
    path.write_bytes(content)
    assert VerdictFile(path).read() == {}


def test_a_write_that_fails_leaves_what_was_there(tmp_path: Path) -> None:
    path = tmp_path / "file.json"
    VerdictFile(path).write({"2": SLOW})
    path.with_name("file.json.new").mkdir()
    with pytest.raises(OSError, match="directory"):
        VerdictFile(path).write({})
    assert VerdictFile(path).read() == {"2": SLOW}


def test_every_name_and_folder_has_a_file_of_its_own(tmp_path: Path) -> None:
    folders = (tmp_path / "helmets", tmp_path / "other" / "helmets", tmp_path / ("x" * 200))
    paths = {verdict_path(tmp_path, name, each) for name in ("a", "a/b") for each in folders}
    assert len(paths) == 6
    assert {path.parent for path in paths} == {tmp_path / "verdicts"}
