"""``/healthz`` (is the process sound?) and ``/readyz`` (may traffic come?)."""

from __future__ import annotations

from aiohttp import web

from engine.base import Engine
from gateway.errors import ProblemKind, RequestProblem


class Health:
    """What stands between the process and traffic.

    ``fail`` is for a task that must never end: from then on the process is unhealthy for good.
    """

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self._is_draining = False
        self._failure: str | None = None

    @property
    def failure(self) -> str | None:
        return self._failure

    @property
    def is_draining(self) -> bool:
        return self._is_draining

    def fail(self, reason: str) -> None:
        self._failure = self._failure or reason

    def start_draining(self) -> None:
        self._is_draining = True

    def reasons(self) -> list[str]:
        """Why the gateway is not ready, most important first; empty when it is."""
        reasons = []
        if self._failure is not None:
            reasons.append(self._failure)
        if self._is_draining:
            reasons.append("shutting down")
        models = self._engine.statistics().models
        waiting = [model for model in models if not (model.ready or model.unloaded)]
        return [*reasons, *(f"model {m.model}: {m.reason or 'warming up'}" for m in waiting)]

    def routes(self) -> list[web.RouteDef]:
        return [
            web.get("/healthz", self.healthz),
            web.get("/health", self.healthz),  # the name that benchmark clients of LLMs ask for
            web.get("/readyz", self.readyz),
        ]

    async def healthz(self, request: web.Request) -> web.Response:
        if self._failure is not None:
            raise RequestProblem(ProblemKind.UNAVAILABLE, self._failure)
        return web.json_response({"status": "ok"})

    async def readyz(self, request: web.Request) -> web.Response:
        reasons = self.reasons()
        if reasons:
            detail = "; ".join(reasons)
            raise RequestProblem(ProblemKind.UNAVAILABLE, detail, retry_after_ms=1000)
        return web.json_response({"status": "ready"})
