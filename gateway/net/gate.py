"""What every request passes before a handler sees it, and how handlers learn who asks."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

from aiohttp import web

from gateway.errors import ProblemKind, RequestProblem
from gateway.net.auth import ANONYMOUS, Keyring, OriginPolicy, TicketBox

Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]


class Gate:
    """Applies the origin policy to all requests; answers who a request comes from."""

    def __init__(self, origins: OriginPolicy, keyring: Keyring, tickets: TicketBox) -> None:
        self._origins = origins
        self._keyring = keyring
        self._tickets = tickets

    @web.middleware
    async def middleware(self, request: web.Request, handler: Handler) -> web.StreamResponse:
        self._origins.check(request.headers, request.scheme)
        return await handler(request)

    def authenticate(self, request: web.Request) -> str:
        """The principal behind a plain request; raises RequestProblem(UNAUTHORIZED)."""
        principal = self._keyring.identify_headers(request.headers)
        if principal is None:
            raise RequestProblem(
                ProblemKind.UNAUTHORIZED, "send Authorization: Bearer KEY or X-API-Key: KEY"
            )
        return principal

    def authenticate_upgrade(self, request: web.Request) -> str | None:
        """The principal behind a WebSocket handshake; None: the first message must tell.

        Raises:
            RequestProblem: a key or ticket was presented that is not valid.
        """
        if not self._keyring.is_required:
            return ANONYMOUS
        ticket = request.query.get("ticket")
        if ticket is not None:
            return self._tickets.redeem(ticket, asyncio.get_running_loop().time())
        return self._keyring.identify_headers(request.headers)
