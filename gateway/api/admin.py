"""``POST /v1/admin/say``: an operator's words for those at the other end, ahead of all text."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from typing import Annotated, Protocol

import msgspec
from aiohttp import web
from msgspec import UNSET, Meta

from gateway.errors import ProblemKind, RequestProblem
from gateway.stream.token_bucket import TokenBucket
from gateway.wire.messages import ServerEvent, StreamId

MAX_TEXT_CHARS = 2000  # six bytes each in JSON at most: well below a control message
MAX_BODY_BYTES = 16 * 1024
BODY_TIMEOUT_S = 5.0
# Each may go to a thousand sessions.
RATE_HZ, BURST = 2.0, 10
OPERATOR_MESSAGE = "message"

logger = logging.getLogger(__name__)


class SayRequest(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """To one stream of a session, to one session, or to everybody."""

    text: Annotated[str, Meta(min_length=1, max_length=MAX_TEXT_CHARS)]
    session: Annotated[str, Meta(min_length=1, max_length=64)] | None = None
    stream: StreamId | None = None


class Audience(Protocol):
    """All sessions of the process."""

    def say(self, event: ServerEvent, session: str | None = None) -> int:
        """Tell it to that session, or to all; returns to how many. One that has no connection, or
        no stream of that id, is not told."""


class AdminApi:
    """At most ``BURST`` messages at once, ``RATE_HZ`` a second. ``authenticate`` lets operators
    in, and raises RequestProblem for everybody else."""

    def __init__(self, audience: Audience, authenticate: Callable[[web.Request], str]) -> None:
        self._audience = audience
        self._authenticate = authenticate
        self._rate = TokenBucket(RATE_HZ, BURST)

    def routes(self) -> list[web.RouteDef]:
        return [web.post("/v1/admin/say", self.say)]

    async def say(self, request: web.Request) -> web.Response:
        operator = self._authenticate(request)
        wanted = await _read(request)
        if not self._rate.try_take(asyncio.get_running_loop().time()):
            detail = f"at most {RATE_HZ:g} messages a second"
            raise RequestProblem(ProblemKind.LIMIT_EXCEEDED, detail, retry_after_ms=500)
        event = ServerEvent(
            kind=OPERATOR_MESSAGE,
            text=wanted.text,
            stream=UNSET if wanted.stream is None else wanted.stream,
        )
        num_told = self._audience.say(event, wanted.session)
        if num_told == 0 and wanted.session is not None:
            where = "session" if wanted.stream is None else "session with that stream"
            raise RequestProblem(ProblemKind.NOT_FOUND, f"there is no such {where}")
        logger.info("%s said %d characters to %d sessions", operator, len(wanted.text), num_told)
        return web.json_response({"sessions": num_told})


async def _read(request: web.Request) -> SayRequest:
    if request.content_type != "application/json":
        # Also keeps forms of foreign pages out, which need no permission to be sent.
        raise RequestProblem(ProblemKind.INVALID_MESSAGE, "the body is application/json")
    try:
        async with asyncio.timeout(BODY_TIMEOUT_S):
            body = await _collect(request)
    except TimeoutError:
        raise RequestProblem(ProblemKind.TIMEOUT, "the body did not arrive") from None
    try:
        wanted = msgspec.json.decode(body, type=SayRequest)
    except msgspec.DecodeError as error:
        raise RequestProblem(ProblemKind.INVALID_MESSAGE, str(error)) from None
    if wanted.stream is not None and wanted.session is None:
        detail = "stream needs session: every session numbers its own"
        raise RequestProblem(ProblemKind.INVALID_MESSAGE, detail)
    return wanted


async def _collect(request: web.Request) -> bytes:
    body = bytearray()
    async for chunk in request.content.iter_any():
        body += chunk
        if len(body) > MAX_BODY_BYTES:
            detail = f"the body has at most {MAX_BODY_BYTES} bytes"
            raise RequestProblem(ProblemKind.FRAME_TOO_LARGE, detail)
    return bytes(body)
