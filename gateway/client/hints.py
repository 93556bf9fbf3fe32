"""Obeys a server's hints: fewer frames, or smaller ones, than the program asked for."""

from __future__ import annotations

from gateway.client.capture import RateLimit
from gateway.client.frames import AdjustableSource, FrameSource, PictureLimits
from gateway.wire.messages import Hint

MIN_WIDTH = 16


class HintedSource:
    """What may be sent of one source. The program's own ``fps`` holds whatever the server says; a
    source of finished pictures can only send fewer of them. A source that is not live waits for
    credit instead: every one of its frames is wanted as it is."""

    def __init__(self, source: FrameSource, fps: float | None) -> None:
        self._source = source
        self._is_live = bool(getattr(source, "is_live", True))
        self._fps = fps
        self._rate = RateLimit(fps)
        self.hint = Hint(stream=0)  # the newest; no limits yet

    def passes(self, at: float) -> bool:
        """Whether the frame captured at that time (seconds, never falling) is to be sent."""
        return self._rate.passes(at)

    def obey(self, hint: Hint) -> None:
        """Keep to this hint, which replaces all earlier ones."""
        self.hint = hint
        if not self._is_live:
            return
        limits = [fps for fps in (self._fps, hint.max_fps) if isinstance(fps, int | float)]
        self._rate = RateLimit(min(limits, default=None))
        if isinstance(self._source, AdjustableSource):
            width, quality = hint.max_width, hint.quality
            self._source.limit(
                PictureLimits(
                    max_width=max(MIN_WIDTH, width) if isinstance(width, int) else None,
                    quality=quality if isinstance(quality, int | float) else None,
                )
            )

    def reset(self) -> None:
        """A new connection: its server has asked for nothing yet."""
        self.obey(Hint(stream=0))
