"""The composition root: builds every part, starts them in order, and ends them in one budget.

Start: resolve models → listen (``/healthz`` answers, ``/readyz`` says what warms up) → start the
engine → ready. End: not ready → ``goaway`` → finish what was accepted → tell the rest as dropped →
close 1012 → abort → stop the engine; all of it within ``server.shutdown_budget_s``.
"""

from __future__ import annotations

import asyncio
import logging
import signal
from collections.abc import Callable, Coroutine
from typing import Any

from aiohttp import web

from engine.base import Engine
from engine.errors import EngineError
from engine.models.store import ModelStore
from gateway.api.admin import AdminApi
from gateway.api.answers import Answers
from gateway.api.health import Health
from gateway.api.infer import InferApi
from gateway.api.metrics import MetricsApi
from gateway.api.models import ModelsApi
from gateway.api.openai_api import OpenAiApi
from gateway.api.openai_errors import openai_errors_middleware
from gateway.api.pages import PagesApi, add_security_headers
from gateway.api.problems import error_response, problems_middleware
from gateway.api.queries import queries_middleware
from gateway.api.repository import RepositoryApi
from gateway.api.sse import EventStreams
from gateway.api.tickets import TicketsApi
from gateway.config import GatewayConfig
from gateway.errors import CloseCode, ConnectionFault
from gateway.metrics import LoopLag
from gateway.net.admission import ConnectionTable
from gateway.net.auth import TicketBox, keyring_of, origin_policy_of
from gateway.net.ending import Ending
from gateway.net.gate import Gate
from gateway.net.network_sampler import NetworkSampler
from gateway.net.server import HttpServer
from gateway.net.stream_endpoint import StreamEndpoint
from gateway.serving import Serving, build_serving, max_prompt_bytes
from gateway.session.attachment import Attachment
from gateway.session.clock import Clock
from gateway.session.detached import DetachedSessions
from gateway.session.pacing import Pacing
from gateway.session.pressure import Pressure, Readings
from gateway.session.registry import SessionRegistry
from gateway.session.session import Session
from gateway.session.tiers import Tiers
from gateway.stream.credit_pool import CreditPools
from gateway.stream.outbox import Outbox
from gateway.stream.service_level import Level
from gateway.wire.messages import ServerEvent

# Shares of the shutdown budget: by then accepted frames are finished or given up, the receipts of
# those sent, sockets closed, the engine stopped. What is left is for HTTP requests that get their
# answer from the engine's end.
FINISH_SHARE, FLUSH_SHARE, CLOSE_SHARE, ENGINE_SHARE = 0.6, 0.68, 0.78, 0.95
CUT_SHORT_S = 0.5  # what a step may take that should take no time
SIGNALS = (signal.SIGINT, signal.SIGTERM)

logger = logging.getLogger(__name__)


class Gateway:
    """One gateway process. ``start`` or ``run_until_signal`` once; ``aclose`` is idempotent.

    Without ``engine`` it serves the configured models from the store. An engine that is passed
    in is started and closed here all the same.
    """

    def __init__(
        self, config: GatewayConfig, engine: Engine | None = None, store: ModelStore | None = None
    ) -> None:
        self._config = config
        self._given_engine = engine
        self._store = ModelStore() if store is None else store
        self._tasks: set[asyncio.Task[None]] = set()
        self._parts: _Parts | None = None
        self._closing: asyncio.Task[None] | None = None
        self._signalled = asyncio.Event()
        self._cut_short = asyncio.Event()
        self._engine_started = asyncio.Event()
        self._start_error: Exception | None = None

    @property
    def port(self) -> int:
        """The port in use, also when 0 was asked for."""
        return self._live.server.port

    @property
    def url(self) -> str:
        """Where a browser on this machine finds the page."""
        return self._live.server.url

    @property
    def health(self) -> Health:
        return self._live.health

    @property
    def sessions(self) -> SessionRegistry:
        return self._live.sessions

    @property
    def connections(self) -> ConnectionTable:
        return self._live.connections

    @property
    def engine(self) -> Engine:
        return self._live.engine

    async def start(self) -> None:
        """Listen and warm up; returns when ready.

        Raises:
            ConfigError: the address or TLS cannot be used.
            EngineError: a model is missing or did not start.
        """
        await self.listen()
        await self._engine_started.wait()
        if self._start_error is not None:
            raise self._start_error

    async def listen(self) -> None:
        """Listen and begin to warm up; ``/readyz`` tells when that is done. Idempotent.

        Raises as ``start``, but for failures of the warm-up, which ``/readyz`` tells.
        """
        if self._parts is not None:
            return
        parts = _Parts(self._config, self._given_engine, self._store)
        await parts.server.start()
        parts.network.start()
        self._parts = parts
        self._own(self._start_engine(parts), "engine start")

    async def run_until_signal(self, on_ready: Callable[[], None] | None = None) -> None:
        """Serve until SIGINT or SIGTERM, then shut down in order; a second signal cuts it short.

        Args:
            on_ready: called once every model is warm.

        Raises as ``start``.
        """
        loop = asyncio.get_running_loop()
        for number in SIGNALS:
            loop.add_signal_handler(number, self._receive_signal, number)
        try:
            await self.listen()
            await _first_of(self._engine_started.wait(), self._signalled.wait())
            if self._start_error is not None:
                raise self._start_error
            if on_ready is not None and not self._signalled.is_set():
                on_ready()
            await self._signalled.wait()
        finally:
            await self.aclose()
            for number in SIGNALS:
                loop.remove_signal_handler(number)

    async def aclose(self) -> None:
        """Shut down within ``server.shutdown_budget_s``; idempotent."""
        if self._parts is None:
            return
        if self._closing is None:
            deadline = asyncio.get_running_loop().time() + self._config.server.shutdown_budget_s
            self._closing = asyncio.create_task(
                self._shut_down(self._parts, deadline), name="shutdown"
            )
        await asyncio.shield(self._closing)

    @property
    def _live(self) -> _Parts:
        if self._parts is None:
            raise RuntimeError("the gateway has not been started")
        return self._parts

    def _own(self, work: Coroutine[Any, Any, None], name: str) -> None:
        """Run a task that belongs to the gateway; if it fails, the process is unhealthy."""
        task = asyncio.create_task(work, name=name)
        self._tasks.add(task)
        task.add_done_callback(self._disown)

    def _disown(self, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        error = None if task.cancelled() else task.exception()
        if error is not None:
            logger.error("task %s failed", task.get_name(), exc_info=error)
            self._live.health.fail(f"task {task.get_name()} failed")

    async def _start_engine(self, parts: _Parts) -> None:
        try:
            await parts.engine.start()
            logger.info("every model is ready")
            self._own(parts.loop_lag.run(), "loop lag")  # the warm-up is no load to relieve
        except EngineError as error:
            self._start_error = error  # told by whoever started us, once
            parts.health.fail(f"the engine did not start: {error}")
        except Exception as error:
            self._start_error = error
            raise
        finally:
            self._engine_started.set()

    def _receive_signal(self, number: int) -> None:
        logger.info("%s: finishing; another one ends it at once", signal.Signals(number).name)
        if self._signalled.is_set():
            self._cut_short.set()
        self._signalled.set()

    async def _shut_down(self, parts: _Parts, deadline: float) -> None:
        orderly = asyncio.create_task(parts.drain(deadline), name="drain")
        await _first_of(asyncio.wait({orderly}), self._cut_short.wait())
        if not orderly.done():
            orderly.cancel()
            deadline = asyncio.get_running_loop().time() + CUT_SHORT_S
        for task in self._tasks:
            task.cancel()
        if self._tasks:
            await asyncio.wait(self._tasks, timeout=CUT_SHORT_S)
        await parts.stop(deadline)
        logger.info("stopped")


async def _first_of(*waits: Coroutine[Any, Any, object]) -> None:
    """Wait until one of them is over; the others are cancelled."""
    tasks = [asyncio.create_task(wait, name="wait for the first of several") for wait in waits]
    try:
        await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
    finally:
        for task in tasks:
            task.cancel()


class _Parts:
    """Everything that is alive between start and end, wired together."""

    def __init__(self, config: GatewayConfig, engine: Engine | None, store: ModelStore) -> None:
        self.pressure = Pressure(
            max_wait_s=config.inference.max_wait_ms / 1e3,
            min_rate=config.inference.min_rate,
            on_change=self._announce,
        )
        serving = (
            build_serving(config, store, self.pressure.service_level)
            if engine is None
            else Serving(engine, {})
        )
        self.engine = serving.engine
        self.health = Health(self.engine)
        self.loop_lag = LoopLag()
        self.clock = Clock(asyncio.get_running_loop())
        self._keyring = keyring_of(config.server)
        self._tiers = Tiers(self.pressure, self._keyring.tier_of)
        limits = config.limits
        self.sessions = SessionRegistry(
            limits.max_connections,
            limits.max_input_bytes,
            detached=DetachedSessions(
                max_sessions=limits.max_detached_sessions,
                max_bytes=limits.max_detached_bytes,
            ),
            tiers=self._tiers,
            credit=CreditPools(
                {
                    name: served.serving.max_concurrent_requests
                    for name, served in config.models.items()
                }
            ),
        )
        self.connections = ConnectionTable(limits.max_connections, limits.max_outboxes_bytes)
        self.event_streams = EventStreams()
        budget = self.connections.output_budget
        answers = Answers(budget, send_timeout_s=limits.send_timeout_s)
        self.network = NetworkSampler(self.clock, self.connections, self.event_streams, answers)
        self.pacing = Pacing(config.pacing, self.clock)
        self._config = config
        self._manifests, self._kinds = serving.manifests, serving.kinds
        self._tickets = TicketBox()
        self._gate = Gate(origin_policy_of(config.server), self._keyring, self._tickets)
        self.server = HttpServer(
            config.server,
            routes=self._routes(store),
            middlewares=(
                problems_middleware,
                openai_errors_middleware,
                answers.middleware,
                self._gate.middleware,
                queries_middleware,
            ),
            respond_error=error_response,
            limits=limits,
        )
        self.server.app.on_response_prepare.append(add_security_headers)
        self.pressure.start(self.clock, self._read_load)

    def _routes(self, store: ModelStore) -> list[web.AbstractRouteDef]:
        config, limits, may = self._config, self._config.limits, self._gate.authenticate
        stream = StreamEndpoint(self._gate, self.connections, limits, self._open_session)
        admit, credit = self._tiers.admit, self.sessions.credit
        infer = InferApi(self.engine, limits, config.streams, self._kinds, may, admit, credit)
        admin = AdminApi(self.sessions, self._gate.authenticate_admin)
        openai = OpenAiApi(
            self.engine,
            self.sessions,
            self.pacing,
            limits,
            config.text,
            self.event_streams,
            max_prompt_bytes=max_prompt_bytes(config),
            kinds=self._kinds,
            authenticate=may,
            admit=admit,
            is_draining=lambda: self.health.is_draining,
        )
        sources = (self.engine, self.sessions, self.connections, self.loop_lag)
        metrics = MetricsApi(*sources, may, self.pressure, self.event_streams)
        return [
            *stream.routes(),
            *infer.routes(),
            *openai.routes(),
            *ModelsApi(self.engine, self._manifests, may).routes(),
            *RepositoryApi(self.engine, self._gate.authenticate_admin).routes(),
            *TicketsApi(self._tickets, may).routes(),
            *admin.routes(),
            *metrics.routes(),
            *self.health.routes(),
            *PagesApi(store.clip_path).routes(),
        ]

    def _open_session(
        self, *, outbox: Outbox, principal: str | None, on_fault: Callable[[ConnectionFault], None]
    ) -> Attachment:
        session = Session(
            engine=self.engine,
            limits=self._config.limits,
            streams=self._config.streams,
            text=self._config.text,
            outbox=outbox,
            clock=self.clock,
            registry=self.sessions,
            pacing=self.pacing,
            authenticate=self._keyring.identify,
            on_fault=on_fault,
            principal=principal,
            kinds=self._kinds,
        )
        session.start()
        return session.attachment

    def _announce(self, level: Level) -> None:
        text = f"service level: {level.label}"
        self.sessions.say(ServerEvent(kind="service_level", text=text, level=level.label))

    def _read_load(self) -> Readings:
        waiting_bytes = self.connections.output_budget.meter.used
        return Readings(
            models=self.engine.statistics().models,
            outbox_share=waiting_bytes / self._config.limits.max_outboxes_bytes,
            loop_lag_s=self.loop_lag.statistics().lasting_s,
        )

    async def drain(self, deadline: float) -> None:
        """Let everybody finish and leave; some of the time to ``deadline`` is left for ``stop``."""
        now = self.clock.now()
        budget_s = deadline - now
        self.health.start_draining()
        self.connections.refuse_new()
        self.sessions.detached.end_all()
        self.connections.drain_all(round(1000 * FLUSH_SHARE * budget_s))
        await self.connections.wait_idle(now + FINISH_SHARE * budget_s)
        self.connections.give_up_all()
        await self.connections.wait_idle(now + FLUSH_SHARE * budget_s)
        self.connections.end_all(Ending(code=CloseCode.SERVICE_RESTART, reason="restarting"))
        await self.connections.wait_empty(now + CLOSE_SHARE * budget_s)
        await self._close_engine(now + ENGINE_SHARE * budget_s)

    async def stop(self, deadline: float) -> None:
        """End by force what is left."""
        self.pressure.stop()
        self.network.stop()
        self.connections.abort_all()
        await self.connections.wait_empty(deadline)
        await self._close_engine(deadline)
        await self.server.aclose(max(deadline, self.clock.now() + CUT_SHORT_S))
        self.clock.aclose()

    async def _close_engine(self, deadline: float) -> None:
        try:
            async with asyncio.timeout_at(max(deadline, self.clock.now()) + CUT_SHORT_S):
                await self.engine.aclose(deadline)
        except TimeoutError:
            logger.error("the engine did not stop in time")
