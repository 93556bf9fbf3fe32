"""``POST /v1/tickets``: trades an API key for a one-time ticket (``/v1/stream?ticket=…``)."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from aiohttp import web

from gateway.net.auth import TicketBox


class TicketsApi:
    """Tickets are for browsers, whose scripts cannot set headers on a WebSocket."""

    def __init__(self, tickets: TicketBox, authenticate: Callable[[web.Request], str]) -> None:
        self._tickets = tickets
        self._authenticate = authenticate

    def routes(self) -> list[web.RouteDef]:
        return [web.post("/v1/tickets", self.issue)]

    async def issue(self, request: web.Request) -> web.Response:
        principal = self._authenticate(request)
        ticket = self._tickets.issue(principal, asyncio.get_running_loop().time())
        return web.json_response(
            {"ticket": ticket, "expires_in_s": self._tickets.lifetime_s},
            headers={"Cache-Control": "no-store"},
        )
