"""Writes annotated frames to an MP4 file."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager, suppress
from fractions import Fraction
from pathlib import Path
from types import TracebackType
from typing import Any

import av
import cv2
import numpy as np

from gateway.commands.exits import CommandError, ExitCode

_TIME_BASE = Fraction(1, 90_000)  # of MPEG: the usual frame rates have exact periods in it
_NOMINAL_RATE = 25  # for the encoder's rate control; players show the real times
_QUALITY = {"crf": "23", "preset": "veryfast"}


class AnnotatedVideo:
    """An H.264 file of JPEG frames, each shown at its own time.

    A context manager; the file is complete once it is left. Calls block (a few milliseconds a
    frame) and must come from one thread at a time. The first frame sets the size, later ones are
    scaled to it; the last is shown as long as the one before. Without any frame no file appears.
    Adding and leaving raise CommandError when the file cannot be written, once.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self.num_frames = 0
        self._container: Any = None
        self._stream: Any = None
        self._first_s = 0.0
        self._last_pts = -1
        self._period = round(1 / _NOMINAL_RATE / _TIME_BASE)

    def __enter__(self) -> AnnotatedVideo:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if self._container is not None:
            with self._writing():
                self._mux(None)
                self._container.close()
            self._container = None

    def add(self, jpeg: bytes, at_s: float) -> None:
        """Append a frame of that time; one that is not later than the one before is left out.

        Raises:
            CommandError: not a picture, or the file cannot be written.
        """
        picture = cv2.imdecode(np.frombuffer(jpeg, dtype=np.uint8), cv2.IMREAD_COLOR)
        if picture is None:
            raise CommandError(ExitCode.FAILED, "the annotated frame is not a picture")
        with self._writing():
            if self._container is None:
                self._open(picture.shape[1], picture.shape[0])
                self._first_s = at_s
            pts = round((at_s - self._first_s) / _TIME_BASE)
            if pts <= self._last_pts:
                return
            size = (self._stream.width, self._stream.height)
            if (picture.shape[1], picture.shape[0]) != size:
                picture = cv2.resize(picture, size, interpolation=cv2.INTER_AREA)
            frame = av.VideoFrame.from_ndarray(picture.astype(np.uint8, copy=False), format="bgr24")
            frame.pts, frame.time_base = pts, _TIME_BASE
            if self.num_frames > 0:
                self._period = pts - self._last_pts
            self._mux(frame)
        self._last_pts = pts
        self.num_frames += 1

    def _open(self, width: int, height: int) -> None:
        self._container = av.open(str(self.path), "w", format="mp4")
        self._stream = self._container.add_stream("libx264", rate=_NOMINAL_RATE, options=_QUALITY)
        # 4:2:0 halves the colour planes, so both sides must be even.
        self._stream.width, self._stream.height = width - width % 2, height - height % 2
        self._stream.pix_fmt = "yuv420p"
        self._stream.time_base = _TIME_BASE
        self._stream.codec_context.time_base = _TIME_BASE
        self._container.start_encoding()  # opens the file: a bad path shows here, not at the end

    def _mux(self, frame: av.VideoFrame | None) -> None:
        for packet in self._stream.encode(frame):
            packet.duration = self._period  # matters for the last one, which has no successor
            self._container.mux(packet)

    @contextmanager
    def _writing(self) -> Iterator[None]:
        """Make what the file system refuses readable; there is no second try."""
        try:
            yield
        except (av.FFmpegError, OSError) as error:
            container, self._container = self._container, None
            if container is not None:
                with suppress(av.FFmpegError, OSError):
                    container.close()
            reason = error.strerror or type(error).__name__
            raise CommandError(ExitCode.FAILED, f"cannot write {self.path}: {reason}") from error
