"""aiohttp's protocol of one socket, where it is too trusting or says too much."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from typing import Any

from aiohttp import web

from gateway.errors import ConnectionFault
from gateway.net.frame_guard import FrameGuard

logger = logging.getLogger(__name__)

RespondError = Callable[[int], web.Response]  # from the status


class HttpProtocol(web.RequestHandler):
    """Guards the frames of a WebSocket, and answers in our words what aiohttp answers by itself.

    Those answers are for requests that no handler ever sees, because they cannot be parsed;
    aiohttp's own repeat them.
    """

    __slots__ = ("_guard", "_max_frames_per_s", "_respond_error")

    def __init__(
        self,
        server: web.Server,
        *,
        respond_error: RespondError,
        max_frames_per_s: float,
        loop: asyncio.AbstractEventLoop,
        **options: Any,
    ) -> None:
        """``options`` are those of ``web.RequestHandler``."""
        super().__init__(server, loop=loop, **options)
        self._respond_error = respond_error
        self._max_frames_per_s = max_frames_per_s
        self._guard: FrameGuard | None = None

    @property
    def fault(self) -> ConnectionFault | None:
        """Why nothing more will be read from the WebSocket; None: no reason of ours."""
        return None if self._guard is None else self._guard.fault

    def set_parser(self, parser: Any, data_received_cb: Callable[[], None] | None = None) -> None:
        """The handshake is over: from here on come frames."""
        self._guard = FrameGuard(
            parser, max_frames_per_s=self._max_frames_per_s, now=self._loop.time
        )
        guard: Any = self._guard
        super().set_parser(guard, data_received_cb)

    def handle_error(
        self,
        request: web.BaseRequest,
        status: int = 500,
        exc: BaseException | None = None,
        message: str | None = None,
    ) -> web.StreamResponse:
        """The answer to what was no request (below 500), or to a fault outside our handlers."""
        if status >= 500:
            logger.error("a request failed outside its handler", exc_info=exc)
        if request.writer.output_size > 0:
            raise ConnectionError("the answer has begun already")
        response = self._respond_error(status)
        response.force_close()
        return response
