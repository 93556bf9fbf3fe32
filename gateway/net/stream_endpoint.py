"""``GET /v1/stream``: from a handshake to a served connection."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from typing import Protocol

from aiohttp import web

from gateway.config_sections import LimitsConfig
from gateway.errors import ConnectionFault, ProblemKind, RequestProblem
from gateway.net.admission import ConnectionTable
from gateway.net.connection import Connection, ConnectionSession
from gateway.net.gate import Gate
from gateway.net.websocket import PeerGone, Socket
from gateway.stream.outbox import Outbox
from gateway.wire.messages import SUBPROTOCOL


class OpenSession(Protocol):
    """Makes the session of a new connection; the composition root knows what it needs."""

    def __call__(
        self,
        *,
        outbox: Outbox,
        principal: str | None,
        on_fault: Callable[[ConnectionFault], None],
    ) -> ConnectionSession: ...


class StreamEndpoint:
    """Refuses a handshake with an HTTP problem, or serves its connection until it is over."""

    def __init__(
        self,
        gate: Gate,
        connections: ConnectionTable,
        limits: LimitsConfig,
        open_session: OpenSession,
    ) -> None:
        self._gate = gate
        self._connections = connections
        self._limits = limits
        self._open_session = open_session
        self._numbers = itertools.count(1)

    def routes(self) -> list[web.RouteDef]:
        return [web.get("/v1/stream", self.serve, allow_head=False)]

    async def serve(self, request: web.Request) -> web.StreamResponse:
        check_protocol(request)
        with self._connections.place():
            # After the place is sure: a ticket is worth one connection, not one refusal.
            principal = self._gate.authenticate_upgrade(request)
            socket = Socket(request)
            try:
                await socket.accept()
            except PeerGone:
                raise ConnectionResetError from None
            await self._connections.serve(self._connection(socket, principal))
        return socket.response

    def _connection(self, socket: Socket, principal: str | None) -> Connection:
        budget = self._connections.output_budget
        outbox = Outbox(max_bytes=self._limits.max_outbox_bytes, budget=budget)
        connection = Connection(
            socket,
            outbox,
            name=f"connection {next(self._numbers)}",
            turn=self._connections.write_turn,
            send_timeout_s=self._limits.send_timeout_s,
            max_messages_per_s=self._limits.max_messages_per_s,
        )
        connection.session = self._open_session(
            outbox=outbox, principal=principal, on_fault=connection.fail
        )
        return connection


def check_protocol(request: web.Request) -> None:
    """Refuse what is no WebSocket handshake, or offers only subprotocols that are not ours.

    Without an offer the connection speaks ``clawstream.v1``.
    """
    if request.headers.get("Upgrade", "").strip().lower() != "websocket":
        raise RequestProblem(ProblemKind.UNSUPPORTED_PROTOCOL, "this address speaks WebSocket")
    offers = request.headers.getall("Sec-WebSocket-Protocol", [])
    names = [name.strip() for offer in offers for name in offer.split(",")]
    if names and SUBPROTOCOL not in names:
        raise RequestProblem(ProblemKind.UNSUPPORTED_PROTOCOL, f"offer {SUBPROTOCOL}")
