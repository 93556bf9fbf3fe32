from __future__ import annotations

from itertools import pairwise

import pytest

from gateway.stream.advice import CALM_S, LOOK_S, MAX_CALM_S, SIZES, Advice, Advised

pytestmark = pytest.mark.unit


class Camera:
    """Sends at its own rate or the advised one, to a model that serves ``served_fps``."""

    def __init__(self, fps: float, served_fps: float) -> None:
        self.advice = Advice()
        self.fps, self.served_fps = fps, served_fps
        self.way_s = 0.02
        self.is_pressed = False
        self.told: list[tuple[float, Advised]] = []
        self.now = 100.0
        self._due = 0.0

    @property
    def advised(self) -> Advised:
        return self.told[-1][1] if self.told else Advised()

    def run(self, seconds: float) -> None:
        end = self.now + seconds
        while self.now < end:
            fps = min(self.fps, self.advised.max_fps or self.fps)
            self.now += 1 / fps
            self.advice.receive(int((self.now - self.way_s) * 1e6), self.now)
            self._due = min(self._due + self.served_fps / fps, 2.0)
            if self._due >= 1.0:
                self._due -= 1.0
                self.advice.serve()
            else:
                self.advice.give_up()
            hint = self.advice.next_hint(self.now, is_pressed=self.is_pressed)
            if hint is not None:
                self.told.append((self.now, hint))


def test_a_camera_that_is_served_is_left_alone() -> None:
    camera = Camera(30, 30)
    camera.run(30)
    assert camera.told == []


def test_superseding_some_frames_keeps_them_fresh_and_is_no_reason_to_send_fewer() -> None:
    camera = Camera(30, 20)
    camera.run(30)
    assert camera.told == []


def test_a_camera_that_sends_twice_what_is_served_is_asked_for_fewer() -> None:
    camera = Camera(30, 10)
    camera.run(2 * LOOK_S + 0.5)
    assert camera.advised.max_fps == pytest.approx(15, abs=1.5)
    assert camera.advised.max_width is None
    camera.run(60)
    assert len(camera.told) == 1, "half more than is served is where it stays"


def test_a_camera_gets_its_rate_back_when_the_model_is_quicker() -> None:
    camera = Camera(30, 5)
    camera.run(10)
    assert camera.advised.max_fps is not None
    camera.served_fps = 30
    camera.run(40)
    assert camera.advised == Advised()
    rates = [advised.max_fps or 30 for _, advised in camera.told]
    assert rates[1:] == sorted(rates[1:])


def test_raising_that_was_wrong_is_tried_less_and_less_often() -> None:
    camera = Camera(30, 9)
    times: list[float] = []
    for _ in range(40):
        # A model that copes with few frames only, and stalls on more.
        fps = min(30, camera.advised.max_fps or 30)
        camera.served_fps = fps if fps <= 15 else 5
        before = len(camera.told)
        camera.run(5)
        times += [
            at for at, hint in camera.told[before:] if hint.max_fps is None or hint.max_fps > 15
        ]
    waits = [b - a for a, b in pairwise(times)]
    assert len(times) >= 3
    assert waits == sorted(waits)
    assert waits[-1] > 2 * CALM_S
    assert waits[-1] < 2 * MAX_CALM_S


def test_a_way_that_grows_longer_makes_pictures_smaller_step_by_step() -> None:
    camera = Camera(30, 30)
    camera.run(5)
    for step in range(1, len(SIZES) + 1):
        camera.way_s += 0.3
        camera.run(LOOK_S + 0.1)
        size = SIZES[min(step, len(SIZES) - 1)]
        assert (camera.advised.quality, camera.advised.max_width) == size
    camera.way_s = 0.02
    camera.run(60)
    assert camera.advised == Advised()


def test_clocks_that_differ_are_no_slow_way() -> None:
    camera = Camera(30, 30)
    camera.way_s = 86_400.0
    camera.run(30)
    assert camera.told == []


def test_pressure_asks_every_camera_for_less_once() -> None:
    camera = Camera(30, 30)
    camera.run(5)
    camera.is_pressed = True
    camera.run(30)
    assert len(camera.told) == 1
    assert camera.advised.max_fps == pytest.approx(15, abs=1.0)
    assert camera.advised.quality == SIZES[1].quality
    camera.is_pressed = False
    camera.run(60)
    assert camera.advised == Advised()


def test_a_model_that_serves_nothing_says_nothing_about_the_camera() -> None:
    camera = Camera(30, 0)
    camera.run(30)
    assert camera.told == []
