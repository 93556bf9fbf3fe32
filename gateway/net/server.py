"""The listening side: HTTP and WebSocket on one port, over plain TCP or TLS."""

from __future__ import annotations

import asyncio
import logging
import ssl
from collections.abc import Sequence
from typing import cast

from aiohttp import web
from aiohttp.typedefs import Middleware

from gateway.config_sections import LimitsConfig, ServerConfig
from gateway.errors import ConfigError
from gateway.net.http_protocol import HttpProtocol, RespondError
from gateway.net.socket_options import BACKLOG, open_listeners

# Also how long a client may take for its request headers.
KEEPALIVE_TIMEOUT_S = 15.0
LINGER_S = 2.0  # how long the rest of a refused body is read, so that the answer gets through
TLS_HANDSHAKE_TIMEOUT_S = 10.0
# Sockets beside the WebSocket connections: requests, idle keep-alives, handshakes under way.
PLAIN_CONNECTIONS = 256
# WebSocket frames to a message: some clients send a large one in two. What is beyond the limit of
# messages is left to the connection, which can tell them apart.
FRAMES_PER_MESSAGE = 2

logger = logging.getLogger(__name__)


class _Refuser(asyncio.Protocol):
    """Ends a socket at once: there are more of them than the process may hold."""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        # uvloop's transports have no base class in common with asyncio's.
        cast(asyncio.Transport, transport).abort()


class HttpServer:
    """Binds, serves the given routes and stops. The sockets it holds are bounded.

    ``start`` once, ``aclose`` any number of times. ``respond_error`` makes the answer to what
    cannot be parsed as a request.
    """

    def __init__(
        self,
        config: ServerConfig,
        *,
        routes: Sequence[web.AbstractRouteDef],
        middlewares: Sequence[Middleware],
        respond_error: RespondError,
        limits: LimitsConfig,
    ) -> None:
        self._config = config
        self._respond_error = respond_error
        self._max_sockets = limits.max_connections + PLAIN_CONNECTIONS
        self._max_frames_per_s = FRAMES_PER_MESSAGE * limits.max_messages_per_s
        self._user_timeout_s = limits.tcp_user_timeout_s
        self._app = web.Application(middlewares=middlewares)
        self._app.add_routes(routes)
        self._runner = web.AppRunner(
            self._app,
            handle_signals=False,
            handler_cancellation=True,  # a client that has left costs nothing more
            # Zero would mean "for ever" to aiohttp; nothing is in progress by then.
            shutdown_timeout=0.1,
        )
        self._listeners: list[asyncio.Server] = []
        self._port = config.port

    @property
    def app(self) -> web.Application:
        """For signals; frozen by ``start``."""
        return self._app

    @property
    def port(self) -> int:
        """The port in use, also when 0 was asked for."""
        return self._port

    @property
    def url(self) -> str:
        """Where a browser on this machine finds the page."""
        scheme = "https" if self._config.tls_cert else "http"
        host = self._config.host
        if host in ("0.0.0.0", "::", ""):
            host = "127.0.0.1"
        return f"{scheme}://{f'[{host}]' if ':' in host else host}:{self._port}/"

    async def start(self) -> None:
        """Bind and accept.

        Raises:
            ConfigError: the host is unknown or the TLS files cannot be used.
            OSError: the port is taken or not ours to use.
        """
        context = tls_context(self._config)
        sockets = open_listeners(
            self._config.host, self._config.port, user_timeout_s=self._user_timeout_s
        )
        self._port = sockets[0].getsockname()[1]
        await self._runner.setup()
        handshake_timeout_s = TLS_HANDSHAKE_TIMEOUT_S if context is not None else None
        for sock in sockets:
            listener = await asyncio.get_running_loop().create_server(
                self._protocol,
                sock=sock,
                backlog=BACKLOG,
                ssl=context,
                ssl_handshake_timeout=handshake_timeout_s,
            )
            self._listeners.append(listener)

    def stop_listening(self) -> None:
        """Accept nobody any more; idempotent."""
        for listener in self._listeners:
            listener.close()
        self._listeners.clear()

    async def aclose(self, deadline: float) -> None:
        """Stop listening and end what is left, by ``deadline`` at the latest; idempotent."""
        self.stop_listening()
        try:
            async with asyncio.timeout_at(deadline):
                await self._runner.cleanup()
        except TimeoutError:
            logger.warning("some HTTP requests were cut off at the deadline")

    def _protocol(self) -> asyncio.Protocol:
        server = self._runner.server
        assert server is not None, "aclose() stops listening first"
        if len(server.connections) >= self._max_sockets:
            return _Refuser()
        return HttpProtocol(
            server,
            respond_error=self._respond_error,
            max_frames_per_s=self._max_frames_per_s,
            loop=asyncio.get_running_loop(),
            access_log=None,
            keepalive_timeout=KEEPALIVE_TIMEOUT_S,
            lingering_time=LINGER_S,
            auto_decompress=False,  # pictures do not compress, bombs do
        )


def tls_context(config: ServerConfig) -> ssl.SSLContext | None:
    """TLS 1.2 or newer from the configured files; None without.

    Raises:
        ConfigError: a file is missing or they do not belong together.
    """
    if config.tls_cert is None:
        return None
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    context.set_alpn_protocols(["http/1.1"])
    try:
        context.load_cert_chain(config.tls_cert, config.tls_key)
    except (OSError, ssl.SSLError) as error:
        raise ConfigError(f"server.tls_cert: cannot be used: {error}") from None
    return context
