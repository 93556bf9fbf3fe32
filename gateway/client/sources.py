"""Where frames come from: clips and network streams (PyAV), cameras (OpenCV), pictures.

The native libraries are imported when a source starts, never before.
"""

from __future__ import annotations

import time
from collections.abc import AsyncIterator, Generator, Sequence
from functools import partial
from pathlib import Path
from typing import Any, Protocol
from urllib.parse import urlsplit

from gateway.client.capture import ClipSource, Decoded, Encoded, LiveSource, RateLimit
from gateway.client.errors import SourceError
from gateway.client.frames import (
    PICTURE_SUFFIXES,
    CapturedFrame,
    PictureLimits,
    PictureSource,
)

LIVE_SCHEMES = ("rtsp://", "rtsps://", "rtmp://", "udp://", "srt://")
CLIP_SCHEMES = ("http://", "https://")
OPEN_TIMEOUT_S = 10.0
READ_TIMEOUT_S = 10.0


class StoppableSource(Protocol):
    """What ``open_source`` returns; iterated once."""

    @property
    def is_live(self) -> bool: ...

    def __aiter__(self) -> AsyncIterator[CapturedFrame]: ...

    def stop(self) -> None:
        """End the iteration soon; may be called at any time."""


def open_source(
    spec: str | int | Path | Sequence[bytes | str | Path],
    *,
    fps: float | None = None,
    loop: bool = False,
    realtime: bool = True,
    jpeg_quality: int = 85,
    max_width: int | None = None,
) -> StoppableSource:
    """A source of frames; it opens its device when it is iterated.

    Args:
        spec: ``0`` or ``"0"`` for a camera, ``rtsp://…`` (or rtmp, udp, srt), a video file or its
            http address, a picture, a folder of pictures, or a list of encoded bytes or paths.
        fps: at most this many frames per second; None: what the source has.
        loop: begin again at the end (files and pictures).
        realtime: clips, and pictures with ``fps``, come at their own pace and late frames are
            skipped; if false, every frame comes as fast as it is taken, like pictures without.

    Raises:
        SourceError: no such file, or nothing in it; devices and addresses fail when iterated.
        ValueError: an option is out of range.
    """
    _check_options(fps, jpeg_quality, max_width)
    encode = partial(_encode, jpeg_quality=jpeg_quality, max_width=max_width)
    if isinstance(spec, int) or (isinstance(spec, str) and spec.isdecimal()):
        index = int(spec)
        return LiveSource(partial(_read_camera, index), encode, name=f"camera {index}", fps=fps)
    if isinstance(spec, str) and spec.startswith(LIVE_SCHEMES):
        return LiveSource(partial(_read_network, spec), encode, name=_shown(spec), fps=fps)
    picture_fps = fps if realtime else None
    if not isinstance(spec, str | Path):
        pictures = [item if isinstance(item, bytes) else Path(item) for item in spec]
        return PictureSource(pictures, fps=picture_fps, loop=loop)
    is_address = isinstance(spec, str) and spec.startswith(CLIP_SCHEMES)
    if not is_address and (paths := _picture_paths(Path(spec).expanduser())) is not None:
        return PictureSource(paths, fps=picture_fps, loop=loop)
    clip = str(spec) if is_address else str(Path(spec).expanduser())
    read = partial(_read_clip, clip, fps=fps, loop=loop)
    return ClipSource(read, encode, is_live=realtime)


def _check_options(fps: float | None, jpeg_quality: int, max_width: int | None) -> None:
    if fps is not None and not 0.0 < fps <= 1000.0:
        raise ValueError(f"fps must be above 0 and at most 1000, got {fps}")
    if not 1 <= jpeg_quality <= 100:
        raise ValueError(f"jpeg_quality must be in 1..100, got {jpeg_quality}")
    if max_width is not None and max_width < 16:
        raise ValueError(f"max_width must be at least 16, got {max_width}")


def _picture_paths(path: Path) -> list[Path] | None:
    """The pictures at a path, or None if it is a clip."""
    if path.is_dir():
        found = sorted(p for p in path.iterdir() if p.suffix.lower() in PICTURE_SUFFIXES)
        if not found:
            raise SourceError(f"there are no pictures in {path}")
        return found
    if not path.is_file():
        raise SourceError(f"file not found: {path}")
    return [path] if path.suffix.lower() in PICTURE_SUFFIXES else None


def _shown(address: str) -> str:
    """The address without user and password, for texts and logs."""
    parts = urlsplit(address)
    host = parts.hostname or ""
    port = f":{parts.port}" if parts.port is not None else ""
    return f"{parts.scheme}://{host}{port}{parts.path}"


def _read_camera(index: int) -> Generator[Decoded, None, None]:
    import cv2

    camera = _open_camera(index)
    try:
        if not camera.isOpened():
            raise SourceError(f"cannot open camera {index}: is it connected and not in use?")
        camera.set(cv2.CAP_PROP_BUFFERSIZE, 1)  # drivers that know it keep no old pictures
        started_at = time.monotonic()
        while True:
            is_read, image = camera.read()
            if not is_read:
                raise SourceError(f"camera {index} delivers no more pictures")
            yield Decoded(image, time.monotonic() - started_at)
    finally:
        camera.release()


def _open_camera(index: int) -> Any:
    """An OpenCV capture, perhaps not opened; its own warnings about that are kept back."""
    import cv2

    log = cv2.utils.logging
    level = log.getLogLevel()
    log.setLogLevel(log.LOG_LEVEL_SILENT)
    try:
        return cv2.VideoCapture(index)
    finally:
        log.setLogLevel(level)


def _read_network(address: str) -> Generator[Decoded, None, None]:
    # TCP: a lost UDP packet would damage every picture until the next key frame.
    options = {"rtsp_transport": "tcp", "fflags": "nobuffer"}
    for decoded, _ in _decode(address, options):
        yield decoded
    raise SourceError(f"{_shown(address)} has ended")


def _read_clip(path: str, *, fps: float | None, loop: bool) -> Generator[Decoded, None, None]:
    rate = RateLimit(fps)
    offset_s = 0.0
    while True:
        end_s = 0.0
        for decoded, duration_s in _decode(path, {}):
            end_s = max(end_s, decoded.media_time_s + duration_s)
            at_s = offset_s + decoded.media_time_s
            if rate.passes(at_s):
                yield Decoded(decoded.picture, at_s)
        if not loop:
            return
        if end_s <= 0.0:
            raise SourceError(f"there are no pictures in {_named(path)}")
        offset_s += end_s


def _named(path: str) -> str:
    return _shown(path) if "://" in path else path


def _decode(path: str, options: dict[str, str]) -> Generator[tuple[Decoded, float], None, None]:
    """Pictures with their time from the start, and how long each is shown, in seconds."""
    import av

    first_s: float | None = None
    try:
        timeout_s = (OPEN_TIMEOUT_S, READ_TIMEOUT_S)
        with av.open(path, options=options, timeout=timeout_s) as container:
            if not container.streams.video:
                raise SourceError(f"there is no video in {_named(path)}")
            video = container.streams.video[0]
            video.thread_count = 1  # frame threads would add a delay of two frames
            duration_s = float(1 / (video.average_rate or 25))
            for number, frame in enumerate(container.decode(video)):
                at_s = number * duration_s if frame.time is None else frame.time
                first_s = at_s if first_s is None else first_s
                yield Decoded(frame, max(0.0, at_s - first_s)), duration_s
    except av.FFmpegError as error:
        reason = error.strerror or type(error).__name__
        if isinstance(error, av.error.InvalidDataError) and first_s is None:
            reason = "it is no video or picture that is known here"
        raise SourceError(f"cannot read {_named(path)}: {reason}") from None


def _encode(
    decoded: Decoded, limits: PictureLimits, *, jpeg_quality: int, max_width: int | None
) -> Encoded:
    import cv2

    if limits.max_width is not None:
        max_width = min(max_width or limits.max_width, limits.max_width)
    if limits.quality is not None:
        jpeg_quality = max(1, min(jpeg_quality, round(100 * limits.quality)))
    picture: Any = decoded.picture
    image = picture.to_ndarray(format="bgr24") if hasattr(picture, "to_ndarray") else picture
    height, width = image.shape[:2]
    if max_width is not None and width > max_width:
        height, width = max(1, round(height * max_width / width)), max_width
        image = cv2.resize(image, (width, height), interpolation=cv2.INTER_AREA)
    is_done, jpeg = cv2.imencode(".jpg", image, [cv2.IMWRITE_JPEG_QUALITY, jpeg_quality])
    if not is_done:
        raise SourceError(f"a picture of {width}x{height} pixels cannot be encoded")
    return Encoded(jpeg.tobytes(), width, height)
