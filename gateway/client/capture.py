"""The two ways of taking pictures from a decoder that blocks: at its pace, or at ours.

Both are given ``read``, which opens the device or file, yields pictures and releases everything
when its generator is closed, and ``encode``. Both functions run in threads of the source.
"""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import AsyncIterator, Callable, Generator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any, NamedTuple

from gateway.client.errors import SourceError
from gateway.client.frames import CapturedFrame, Pacer, PictureLimits, now_us

STOP_TIMEOUT_S = 2.0  # for a capture thread to end; it is a daemon if it does not
DEFAULT_PERIOD_S = 0.04
PERIOD_SLACK = 0.25  # of a period: capture times jitter, and every other frame must not be lost


@dataclass(frozen=True, slots=True)
class Decoded:
    """A decoded picture of whatever kind ``encode`` understands."""

    picture: Any
    media_time_s: float


class Encoded(NamedTuple):
    """A picture as it is sent; sizes in pixels."""

    jpeg: bytes
    width: int
    height: int


Read = Callable[[], Generator[Decoded, None, None]]
Encode = Callable[[Decoded, PictureLimits], Encoded]


class RateLimit:
    """Passes at most ``fps`` frames per second; None: all."""

    def __init__(self, fps: float | None) -> None:
        self._period_s = None if fps is None else 1.0 / fps
        self._next_at: float | None = None

    def passes(self, at: float) -> bool:
        """Whether the frame captured at that time is sent; times must not fall."""
        if self._period_s is None:
            return True
        if self._next_at is None:
            self._next_at = at
        slack_s = self._period_s * PERIOD_SLACK
        if at < self._next_at - slack_s:
            return False
        self._next_at = max(self._next_at, at - slack_s) + self._period_s
        return True


class LimitedSource:
    """Encodes as it is asked to: a whole value, replaced at once, that other threads read."""

    def __init__(self, encode: Encode) -> None:
        self._encode_within = encode
        self._limits = PictureLimits()

    def limit(self, limits: PictureLimits) -> None:
        """Keep to these from the next picture on; may be called at any time."""
        self._limits = limits

    def _encode(self, decoded: Decoded) -> Encoded:
        return self._encode_within(decoded, self._limits)


class ClipSource(LimitedSource):
    """A file, decoded as it is asked for.

    Live: frames are due on the clip's own schedule, late ones are skipped before they are encoded,
    and ``t_us`` is when a frame was due. Otherwise every frame comes, as fast as it is taken.
    """

    def __init__(
        self, read: Read, encode: Encode, *, is_live: bool, period_s: float = DEFAULT_PERIOD_S
    ) -> None:
        super().__init__(encode)
        self._read = read
        self._period_s = period_s
        self._stopped = asyncio.Event()
        self.is_live = is_live
        self.num_skipped = 0  # frames whose time had passed

    def stop(self) -> None:
        """End the iteration after the frame it is at."""
        self._stopped.set()

    async def __aiter__(self) -> AsyncIterator[CapturedFrame]:
        loop = asyncio.get_running_loop()
        frames = self._read()
        decoder = ThreadPoolExecutor(1, thread_name_prefix="clip decoder")
        pacer: Pacer | None = None
        try:
            while not self._stopped.is_set():
                decoded = await loop.run_in_executor(decoder, next, frames, None)
                if decoded is None:
                    return
                at_s = decoded.media_time_s
                # The schedule starts at the first picture: opening a clip takes a while.
                pacer = pacer or Pacer(self._stopped, time.monotonic() - at_s)
                if self.is_live:
                    if pacer.is_late(at_s, self._period_s):
                        self.num_skipped += 1
                        continue
                    if not await pacer.wait_until(at_s):
                        return
                t_us = pacer.due_us(at_s) if self.is_live else now_us()
                encoded = await loop.run_in_executor(decoder, self._encode, decoded)
                yield _captured(encoded, t_us, at_s)
        finally:
            # Behind whatever the thread is at; nothing waits for it.
            decoder.submit(frames.close)
            decoder.shutdown(wait=False)


class LiveSource(LimitedSource):
    """A camera or network stream: a thread keeps reading, and only the newest picture waits."""

    is_live = True

    def __init__(self, read: Read, encode: Encode, *, name: str, fps: float | None = None) -> None:
        super().__init__(encode)
        self._read = read
        self._name = name
        self._rate = RateLimit(fps)
        self._stopped = threading.Event()
        self._lock = threading.Lock()
        self._newest: tuple[Decoded, int] | None = None
        self._failure: SourceError | None = None
        self._has_ended = False
        self.num_skipped = 0  # frames that a newer one replaced

    def stop(self) -> None:
        """End the iteration at the next picture."""
        self._stopped.set()

    async def __aiter__(self) -> AsyncIterator[CapturedFrame]:
        loop = asyncio.get_running_loop()
        arrived = asyncio.Event()
        thread = threading.Thread(
            target=self._capture, args=(loop, arrived), name=f"capture {self._name}", daemon=True
        )
        thread.start()
        try:
            while True:
                # Bounded by the read time-out of the device: the thread always ends or delivers.
                await arrived.wait()
                arrived.clear()
                with self._lock:
                    newest, self._newest = self._newest, None
                if newest is not None:
                    encoded = await asyncio.to_thread(self._encode, newest[0])
                    yield _captured(encoded, newest[1], newest[0].media_time_s)
                elif self._failure is not None:
                    raise self._failure
                elif self._has_ended:
                    return
                if self._has_ended:
                    arrived.set()
        finally:
            self._stopped.set()
            await asyncio.to_thread(thread.join, STOP_TIMEOUT_S)

    def _capture(self, loop: asyncio.AbstractEventLoop, arrived: asyncio.Event) -> None:
        try:
            frames = self._read()
            try:
                for decoded in frames:
                    if self._stopped.is_set():
                        return
                    if self._rate.passes(time.monotonic()):
                        with self._lock:
                            is_first = self._newest is None
                            self.num_skipped += not is_first
                            self._newest = (decoded, now_us())
                        if is_first:
                            _notify(loop, arrived)
            finally:
                frames.close()
        except SourceError as error:
            self._failure = error
        finally:
            self._has_ended = True
            _notify(loop, arrived)


def _notify(loop: asyncio.AbstractEventLoop, arrived: asyncio.Event) -> None:
    try:
        loop.call_soon_threadsafe(arrived.set)
    except RuntimeError:
        pass  # the loop is closed: nobody is interested any more


def _captured(encoded: Encoded, t_us: int, media_time_s: float) -> CapturedFrame:
    return CapturedFrame(
        jpeg=encoded.jpeg,
        t_us=t_us,
        width=encoded.width,
        height=encoded.height,
        media_time_s=media_time_s,
    )
