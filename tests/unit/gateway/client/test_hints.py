from __future__ import annotations

from collections.abc import AsyncIterator

import pytest

from gateway.client.frames import CapturedFrame, PictureLimits, frames_from_bytes
from gateway.client.hints import HintedSource
from gateway.wire.messages import Hint
from tests.fakes.picture_headers import jpeg_header

pytestmark = pytest.mark.unit


class Camera:
    """A live source that can encode as it is asked to."""

    def __init__(self, *, is_live: bool = True) -> None:
        self.is_live = is_live
        self.limits = PictureLimits()

    def __aiter__(self) -> AsyncIterator[CapturedFrame]:
        raise NotImplementedError

    def limit(self, limits: PictureLimits) -> None:
        self.limits = limits


def num_passed(source: HintedSource, fps: float = 30.0, seconds: float = 4.0) -> int:
    return sum(source.passes(step / fps) for step in range(int(fps * seconds)))


def test_fewer_frames_pass_while_a_hint_says_so() -> None:
    source = HintedSource(Camera(), None)
    assert num_passed(source) == 120
    source.obey(Hint(stream=1, max_fps=10.0))
    assert num_passed(source) == 40
    source.obey(Hint(stream=1))
    assert num_passed(source) == 120


def test_the_programs_own_rate_is_never_exceeded() -> None:
    source = HintedSource(Camera(), 5.0)
    source.obey(Hint(stream=1, max_fps=10.0))
    assert num_passed(source) in (20, 21)


def test_pictures_are_made_smaller_and_larger_again() -> None:
    camera = Camera()
    source = HintedSource(camera, None)
    source.obey(Hint(stream=1, max_width=640, quality=0.5))
    assert camera.limits == PictureLimits(max_width=640, quality=0.5)
    source.reset()
    assert camera.limits == PictureLimits()


def test_an_absurd_width_still_makes_a_picture() -> None:
    camera = Camera()
    HintedSource(camera, None).obey(Hint(stream=1, max_width=0))
    assert camera.limits.max_width == 16


def test_finished_pictures_can_only_be_fewer() -> None:
    source = HintedSource(frames_from_bytes([jpeg_header(64, 48)], fps=30.0), None)
    source.obey(Hint(stream=1, max_width=320, max_fps=15.0))
    assert num_passed(source) == 60


def test_of_a_file_that_waits_for_credit_every_frame_is_sent_as_it_is() -> None:
    camera = Camera(is_live=False)
    source = HintedSource(camera, None)
    source.obey(Hint(stream=1, max_width=320, max_fps=1.0))
    assert num_passed(source) == 120
    assert camera.limits == PictureLimits()
