"""Writes annotated frames to an MP4 file."""

from __future__ import annotations

from fractions import Fraction
from pathlib import Path
from types import TracebackType
from typing import Any

import av
import cv2
import numpy as np

_TIME_BASE = Fraction(1, 1000)  # milliseconds: frames keep their capture times
_NOMINAL_RATE = 15  # what the gateway annotates at most; players show the real times
_QUALITY = {"crf": "23", "preset": "veryfast"}


class AnnotatedVideo:
    """An H.264 file of JPEG frames, each at its capture time.

    A context manager; the file is complete once it is left. Calls block (a few milliseconds a
    frame) and must come from one thread at a time. The first frame sets the size, later ones are
    scaled to it. Without any frame no file appears.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self.num_frames = 0
        self._container: Any = None
        self._stream: Any = None
        self._first_us = 0
        self._last_pts = -1

    def __enter__(self) -> AnnotatedVideo:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if self._container is not None:
            self._container.mux(self._stream.encode(None))
            self._container.close()
            self._container = None

    def add(self, jpeg: bytes, captured_us: int) -> None:
        """Append a frame; one that is not later than the one before is left out.

        Raises:
            ValueError: not a picture.
        """
        picture = cv2.imdecode(np.frombuffer(jpeg, dtype=np.uint8), cv2.IMREAD_COLOR)
        if picture is None:
            raise ValueError("the annotated frame is not a picture")
        if self._container is None:
            self._open(picture.shape[1], picture.shape[0])
            self._first_us = captured_us
        pts = (captured_us - self._first_us) // 1000
        if pts <= self._last_pts:
            return
        size = (self._stream.width, self._stream.height)
        if (picture.shape[1], picture.shape[0]) != size:
            picture = cv2.resize(picture, size, interpolation=cv2.INTER_AREA)
        frame = av.VideoFrame.from_ndarray(picture.astype(np.uint8, copy=False), format="bgr24")
        frame.pts, frame.time_base = pts, _TIME_BASE
        self._container.mux(self._stream.encode(frame))
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
