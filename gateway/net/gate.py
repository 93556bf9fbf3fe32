"""What every request passes before a handler sees it, and how handlers learn who asks."""

from __future__ import annotations

import asyncio

from aiohttp import web
from aiohttp.typedefs import Handler

from gateway.config_values import is_loopback
from gateway.errors import ProblemKind, RequestProblem
from gateway.net.auth import ANONYMOUS, Keyring, OriginPolicy, TicketBox

_PROXY_HEADERS = ("Forwarded", "X-Forwarded-For", "X-Real-Ip", "Via")


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

    def authenticate_admin(self, request: web.Request) -> str:
        """The operator behind a plain request. Without any keys, whoever asks from this machine
        itself, and not through a proxy, which may speak for anybody.

        Raises:
            RequestProblem: UNAUTHORIZED, or FORBIDDEN for a key that is not an operator's.
        """
        if self._keyring.is_required:
            principal = self.authenticate(request)
            if not self._keyring.is_admin(principal):
                raise RequestProblem(ProblemKind.FORBIDDEN, "server.admin_keys has not this key")
            return principal
        is_passed_on = any(name in request.headers for name in _PROXY_HEADERS)
        if is_passed_on or not is_loopback(request.remote or ""):
            raise RequestProblem(ProblemKind.FORBIDDEN, "only from this machine, without a proxy")
        return ANONYMOUS

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
