from __future__ import annotations

from pathlib import Path

import pytest

from gateway.commands.exits import CommandError, ExitCode
from gateway.commands.out_file import check_out_file, check_video_file

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
