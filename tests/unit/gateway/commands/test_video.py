from __future__ import annotations

from fractions import Fraction
from pathlib import Path

import av
import cv2
import numpy as np
import pytest

from gateway.commands.exits import CommandError, ExitCode
from gateway.commands.video import AnnotatedVideo

pytestmark = pytest.mark.unit


def _jpeg(width: int, height: int, level: int) -> bytes:
    picture = np.full((height, width, 3), level, dtype=np.uint8)
    return bytes(cv2.imencode(".jpg", picture)[1])


def _read(path: Path) -> list[av.VideoFrame]:
    with av.open(str(path)) as container:
        return list(container.decode(video=0))


def test_frames_keep_their_times(tmp_path: Path) -> None:
    with AnnotatedVideo(tmp_path / "out.mp4") as video:
        for index, at_s in enumerate([7.0, 7.0667, 7.2, 8.0]):
            video.add(_jpeg(64, 48, 60 * index), at_s)
    frames = _read(tmp_path / "out.mp4")
    assert [frame.time for frame in frames] == pytest.approx([0.0, 0.0667, 0.2, 1.0], abs=0.0001)
    levels = [float(frame.to_ndarray(format="gray").mean()) for frame in frames]
    assert levels == pytest.approx([0.0, 60.0, 120.0, 180.0], abs=6)
    assert video.num_frames == 4


@pytest.mark.parametrize("rate", [Fraction(30_000, 1001), Fraction(25), Fraction(10)])
def test_video_has_length_and_rate_of_its_clip(tmp_path: Path, rate: Fraction) -> None:
    with AnnotatedVideo(tmp_path / "out.mp4") as video:
        for index in range(30):
            video.add(_jpeg(64, 48, 10), float(index / rate))
    with av.open(str(tmp_path / "out.mp4")) as container:
        stream = container.streams.video[0]
        assert stream.average_rate == rate
        assert container.duration == round(30 / rate * av.time_base)


def test_odd_and_changing_sizes_fit_the_first(tmp_path: Path) -> None:
    with AnnotatedVideo(tmp_path / "out.mp4") as video:
        video.add(_jpeg(65, 49, 10), 0.0)
        video.add(_jpeg(128, 96, 10), 0.1)
    assert [(f.width, f.height) for f in _read(tmp_path / "out.mp4")] == [(64, 48), (64, 48)]


def test_frame_that_is_not_later_is_left_out(tmp_path: Path) -> None:
    with AnnotatedVideo(tmp_path / "out.mp4") as video:
        for at_s in (0.0, 0.1, 0.1, 0.05, 0.2):
            video.add(_jpeg(64, 48, 10), at_s)
    assert video.num_frames == len(_read(tmp_path / "out.mp4")) == 3


def test_no_frame_leaves_no_file(tmp_path: Path) -> None:
    with AnnotatedVideo(tmp_path / "out.mp4"):
        pass
    assert not (tmp_path / "out.mp4").exists()


def test_something_else_is_refused(tmp_path: Path) -> None:
    with (
        AnnotatedVideo(tmp_path / "out.mp4") as video,
        pytest.raises(CommandError, match="not a picture"),
    ):
        video.add(b"not a jpeg", 0.0)


def test_file_that_cannot_be_written_is_told_once(tmp_path: Path) -> None:
    with AnnotatedVideo(tmp_path / "gone" / "out.mp4") as video:
        with pytest.raises(CommandError, match=r"cannot write .*out\.mp4: No such file") as caught:
            video.add(_jpeg(64, 48, 10), 0.0)
        assert caught.value.code is ExitCode.FAILED


def test_disk_that_is_full_at_the_end_is_told(tmp_path: Path) -> None:
    full = Path("/dev/full")
    if not full.exists():
        pytest.skip("this system has no /dev/full")
    with pytest.raises(CommandError, match="cannot write /dev/full"), AnnotatedVideo(full) as video:
        video.add(_jpeg(64, 48, 10), 0.0)
