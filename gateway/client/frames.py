"""Frames as a source yields them, the source contract, and sources of encoded pictures.

A source is any object that ``async for`` can iterate and that yields ``CapturedFrame``. Its
attribute ``is_live`` (assumed true if it has none) tells whether frames come at their own pace:
of a live source a stream drops what it may not send, of another it waits with the next frame.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol, runtime_checkable

from gateway.client.errors import SourceError
from gateway.wire.picture import PictureError, read_picture_header

PICTURE_SUFFIXES = frozenset({".jpg", ".jpeg", ".png", ".webp"})
MAX_CACHED_BYTES = 64 * 1024 * 1024


@dataclass(frozen=True, slots=True, kw_only=True)
class CapturedFrame:
    """One encoded picture. ``t_us``: capture time, microseconds of ``time.monotonic``."""

    jpeg: bytes  # or PNG or WebP, where the source had it so
    t_us: int
    width: int
    height: int
    media_time_s: float | None = None  # position in the clip


@dataclass(frozen=True, slots=True, kw_only=True)
class PictureLimits:
    """What a server asks of pictures: at most this wide, of at most this JPEG quality (0..1).
    None: no limit but the source's own."""

    max_width: int | None = None
    quality: float | None = None


class FrameSource(Protocol):
    """What ``stream_frames`` takes."""

    def __aiter__(self) -> AsyncIterator[CapturedFrame]: ...


def now_us() -> int:
    """The clock of ``CapturedFrame.t_us``."""
    return time.monotonic_ns() // 1000


@runtime_checkable
class AdjustableSource(Protocol):
    """A source that encodes its pictures itself, and so can make them smaller."""

    def limit(self, limits: PictureLimits) -> None:
        """Keep to these from the next picture on; may be called at any time."""


class Pacer:
    """Due times on a fixed schedule: late frames never shift the ones after them."""

    def __init__(self, stopped: asyncio.Event, started_at: float) -> None:
        self._stopped = stopped
        self.started_at = started_at

    def is_late(self, media_time_s: float, tolerance_s: float) -> bool:
        """Whether the moment of a frame has passed by more than the tolerance."""
        return time.monotonic() > self.started_at + media_time_s + tolerance_s

    async def wait_until(self, media_time_s: float) -> bool:
        """Wait until the frame is due; False if the source was stopped meanwhile."""
        delay_s = self.started_at + media_time_s - time.monotonic()
        if delay_s > 0:
            try:
                async with asyncio.timeout(delay_s):
                    await self._stopped.wait()
            except TimeoutError:
                pass  # the ordinary end: the frame is due
        return not self._stopped.is_set()

    def due_us(self, media_time_s: float) -> int:
        return round((self.started_at + media_time_s) * 1e6)


class PictureSource:
    """Encoded pictures from memory or files, in order.

    With ``fps`` the source is live: frames are due at multiples of ``1/fps``, those whose time has
    passed are skipped, and ``t_us`` is the moment a frame was due, so that ages include every
    delay of the sender. Without ``fps`` frames come as fast as they are taken. Files are read once
    and kept while they fit into ``MAX_CACHED_BYTES``. May be iterated once at a time.
    """

    def __init__(
        self, pictures: Sequence[bytes | Path], *, fps: float | None, loop: bool = False
    ) -> None:
        if not pictures:
            raise SourceError("there are no pictures to send")
        if fps is not None and not 0.0 < fps <= 1000.0:
            raise ValueError(f"fps must be in 0..1000, got {fps}")
        self._pictures = pictures
        self._fps = fps
        self._loop = loop
        self._stopped = asyncio.Event()
        self._cache: dict[int, tuple[bytes, int, int]] = {}
        self._cached_bytes = 0
        self.is_live = fps is not None
        self.num_skipped = 0  # frames whose time had passed

    def stop(self) -> None:
        """End the iteration after the frame it is at; may be called at any time."""
        self._stopped.set()

    async def __aiter__(self) -> AsyncIterator[CapturedFrame]:
        pacer = Pacer(self._stopped, time.monotonic())
        index = 0
        while not self._stopped.is_set() and (self._loop or index < len(self._pictures)):
            media_time_s = None if self._fps is None else index / self._fps
            if media_time_s is not None and self._fps is not None:
                if pacer.is_late(media_time_s, 1.0 / self._fps):
                    # The newest frame that is due, or the last there is.
                    newest = int((time.monotonic() - pacer.started_at) * self._fps)
                    if not self._loop:
                        newest = min(newest, len(self._pictures) - 1)
                    self.num_skipped += newest - index
                    index, media_time_s = newest, newest / self._fps
                if not await pacer.wait_until(media_time_s):
                    return
            jpeg, width, height = await self._load(index % len(self._pictures))
            yield CapturedFrame(
                jpeg=jpeg,
                t_us=now_us() if media_time_s is None else pacer.due_us(media_time_s),
                width=width,
                height=height,
                media_time_s=media_time_s,
            )
            index += 1

    async def _load(self, index: int) -> tuple[bytes, int, int]:
        if index in self._cache:
            return self._cache[index]
        picture = self._pictures[index]
        if isinstance(picture, bytes):
            loaded = _measured(picture, f"picture {index}")
        else:
            loaded = _measured(await asyncio.to_thread(_read, picture), str(picture))
        if self._cached_bytes + len(loaded[0]) <= MAX_CACHED_BYTES:
            self._cache[index] = loaded
            self._cached_bytes += len(loaded[0])
        return loaded


def frames_from_bytes(
    pictures: Sequence[bytes], *, fps: float | None = None, loop: bool = False
) -> PictureSource:
    """A source of encoded pictures that are in memory already; see ``PictureSource``.

    Raises:
        SourceError: there are none.
    """
    return PictureSource(pictures, fps=fps, loop=loop)


def _read(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except OSError as error:
        raise SourceError(f"cannot read {path}: {error.strerror}") from None


def _measured(picture: bytes, name: str) -> tuple[bytes, int, int]:
    try:
        header = read_picture_header(picture)
    except PictureError as error:
        raise SourceError(f"{name}: {error}") from None
    return picture, header.width, header.height
