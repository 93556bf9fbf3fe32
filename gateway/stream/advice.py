"""What a camera is asked to send: fewer frames when they are thrown away, smaller ones when the
way here is slow, and more again when all is well."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, replace
from typing import NamedTuple

LOOK_S = 2.0  # how long something has to be so before it is answered
CALM_S = 4.0  # how long all has to be well before more is tried
MAX_CALM_S = 64.0  # each attempt that fails doubles the wait, up to here
MIN_FRAMES = 5  # fewer say nothing
TOO_MANY = 0.5  # share of frames given up: the camera sends twice what is served
WELL = 0.1  # share of frames given up below which all is well
# Above 1, so that a fresh frame waits whenever the model becomes free.
HEADROOM = 1.5
RAISE_FACTOR = 2.0
MIN_FPS = 1.0
SLOW_WAY_S = 0.15  # frames take so much longer to come than the quickest of late
_WAY_WINDOW = 256  # frames whose way is looked back at


class PictureSize(NamedTuple):
    """JPEG quality in 0..1 and width in pixels, both at most; None: the client's own."""

    quality: float | None
    max_width: int | None


# Quality first: it costs the model least.
SIZES = (
    PictureSize(None, None),
    PictureSize(0.7, None),
    PictureSize(0.6, 960),
    PictureSize(0.5, 640),
)


@dataclass(frozen=True, slots=True)
class Advised:
    """What the client is to keep to, all of it; None: no limit."""

    max_fps: float | None = None
    quality: float | None = None
    max_width: int | None = None


@dataclass(slots=True)
class _Look:
    """What happened since ``began_at``."""

    began_at: float | None = None  # with its first frame
    received: int = 0
    served: int = 0
    given_up: int = 0
    slow: int = 0  # frames whose way here took too long

    def rate(self, count: int, now: float) -> float:
        assert self.began_at is not None
        return count / max(now - self.began_at, 1e-3)


class Advice:
    """Decides from the receipts of one stream what its camera is to send. Pure: ``now`` in seconds.

    Two quantities, each lowered after ``LOOK_S`` of trouble and raised one step after a time of
    calm, which doubles whenever raising was wrong: ``max_fps`` follows what is served when more
    than half of the frames are given up, and the picture's size goes down one step of ``SIZES``
    when frames take ever longer to arrive. While the server is under pressure (``is_pressed``)
    both are a step lower than they were. Not for lossless streams: they have credit.
    """

    def __init__(self) -> None:
        self._look = _Look()
        self._advised = Advised()
        self._told = self._advised
        self._size = 0
        self._peak_fps = 0.0  # what the camera sent while nothing limited it
        self._calm_since: float | None = None
        self._calm_s = CALM_S
        self._raised_at: float | None = None
        self._was_pressed = False
        self._ways: deque[float] = deque(maxlen=_WAY_WINDOW)

    def receive(self, t_us: int, now: float) -> None:
        """A frame captured at ``t_us`` of the client's clock has arrived."""
        if self._look.began_at is None:
            self._look.began_at = now
        self._look.received += 1
        way_s = now - t_us / 1e6  # two clocks: only differences mean something
        self._ways.append(way_s)
        if way_s > min(self._ways) + SLOW_WAY_S:
            self._look.slow += 1

    def serve(self) -> None:
        """A result was handed to the writer."""
        self._look.served += 1

    def give_up(self) -> None:
        """A frame was superseded, refused by its queue, or too late."""
        self._look.given_up += 1

    def next_hint(self, now: float, *, is_pressed: bool = False) -> Advised | None:
        """What to tell the client now; None while it knows. Changes at most every ``LOOK_S``."""
        look = self._look
        if look.received < MIN_FRAMES or look.began_at is None or now < look.began_at + LOOK_S:
            return None
        self._look = _Look()
        if self._advised.max_fps is None:
            self._peak_fps = look.rate(look.received, now)
        is_new_pressure, self._was_pressed = is_pressed and not self._was_pressed, is_pressed
        # Of a model that serves nothing at all, nobody knows how many frames it wants.
        has_too_many = look.given_up > TOO_MANY * look.received and look.served > 0
        is_slow = look.slow > look.received / 2
        if has_too_many or is_slow or is_new_pressure:
            self._note_trouble(now)
            if has_too_many:
                self._set_fps(HEADROOM * look.rate(look.served, now))
            elif is_new_pressure:
                self._set_fps(look.rate(look.received, now) / 2)
            if is_slow or is_new_pressure:
                self._set_size(min(self._size + 1, len(SIZES) - 1))
        elif is_pressed or look.given_up > WELL * look.received or look.slow > 0:
            self._calm_since = None
        else:
            self._stay_calm(now)
        if self._advised == self._told:
            return None
        self._told = self._advised
        return self._advised

    def _note_trouble(self, now: float) -> None:
        if self._raised_at is not None and now - self._raised_at < 2 * CALM_S:
            self._calm_s = min(2 * self._calm_s, MAX_CALM_S)  # raising was wrong
        self._calm_since = self._raised_at = None

    def _stay_calm(self, now: float) -> None:
        if self._calm_since is None:
            self._calm_since = now
        if now - self._calm_since < self._calm_s or self._advised == Advised():
            return
        self._calm_since = self._raised_at = now
        max_fps = self._advised.max_fps
        if max_fps is not None:
            raised = RAISE_FACTOR * max_fps
            self._set_fps(None if raised >= self._peak_fps else raised)
        elif self._size > 0:
            self._set_size(self._size - 1)
        if self._advised == Advised():
            self._calm_s = CALM_S

    def _set_fps(self, max_fps: float | None) -> None:
        rounded = None if max_fps is None else max(MIN_FPS, round(max_fps, 1))
        self._advised = replace(self._advised, max_fps=rounded)

    def _set_size(self, step: int) -> None:
        self._size = step
        quality, max_width = SIZES[step]
        self._advised = replace(self._advised, quality=quality, max_width=max_width)
