from __future__ import annotations

from pathlib import Path

import av
import cv2
import numpy as np
import pytest

from gateway.commands.video import AnnotatedVideo

pytestmark = pytest.mark.unit


def _jpeg(width: int, height: int, level: int) -> bytes:
    picture = np.full((height, width, 3), level, dtype=np.uint8)
    return bytes(cv2.imencode(".jpg", picture)[1])


def _read(path: Path) -> list[av.VideoFrame]:
    with av.open(str(path)) as container:
        return list(container.decode(video=0))


def test_frames_keep_their_capture_times(tmp_path: Path) -> None:
    captured_us = [1_000_000, 1_066_700, 1_200_000, 2_000_000]
    with AnnotatedVideo(tmp_path / "out.mp4") as video:
        for index, t_us in enumerate(captured_us):
            video.add(_jpeg(64, 48, 60 * index), t_us)
    frames = _read(tmp_path / "out.mp4")
    assert [frame.time for frame in frames] == pytest.approx([0.0, 0.066, 0.2, 1.0], abs=0.002)
    levels = [float(frame.to_ndarray(format="gray").mean()) for frame in frames]
    assert levels == pytest.approx([0.0, 60.0, 120.0, 180.0], abs=6)
    assert video.num_frames == 4


def test_odd_and_changing_sizes_fit_the_first(tmp_path: Path) -> None:
    with AnnotatedVideo(tmp_path / "out.mp4") as video:
        video.add(_jpeg(65, 49, 10), 0)
        video.add(_jpeg(128, 96, 10), 100_000)
    assert [(f.width, f.height) for f in _read(tmp_path / "out.mp4")] == [(64, 48), (64, 48)]


def test_frame_that_is_not_later_is_left_out(tmp_path: Path) -> None:
    with AnnotatedVideo(tmp_path / "out.mp4") as video:
        for t_us in (0, 100_000, 100_400, 50_000, 200_000):
            video.add(_jpeg(64, 48, 10), t_us)
    assert video.num_frames == len(_read(tmp_path / "out.mp4")) == 3


def test_no_frame_leaves_no_file(tmp_path: Path) -> None:
    with AnnotatedVideo(tmp_path / "out.mp4"):
        pass
    assert not (tmp_path / "out.mp4").exists()


def test_something_else_is_refused(tmp_path: Path) -> None:
    with (
        AnnotatedVideo(tmp_path / "out.mp4") as video,
        pytest.raises(ValueError, match="not a picture"),
    ):
        video.add(b"not a jpeg", 0)
