"""``GET /v1/models``: what is served, in the list shape that OpenAI clients read."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping

import msgspec
from aiohttp import web

from engine.base import Engine
from engine.manifest import Manifest

Authenticate = Callable[[web.Request], str]


class ModelCard(msgspec.Struct, frozen=True, kw_only=True):
    """One entry. ``kind`` is the pipeline's; ``reason`` says why a model is not ready."""

    id: str
    created: int
    kind: str
    version: str
    ready: bool
    reason: str
    object: str = "model"
    owned_by: str = "clawstream"


class ModelsApi:
    """Lists the engine's models; ``manifests`` may name fewer (an engine of another kind)."""

    def __init__(
        self, engine: Engine, manifests: Mapping[str, Manifest], authenticate: Authenticate
    ) -> None:
        self._engine = engine
        self._manifests = manifests
        self._authenticate = authenticate
        self._created = int(time.time())

    def routes(self) -> list[web.RouteDef]:
        return [web.get("/v1/models", self.list_models)]

    async def list_models(self, request: web.Request) -> web.Response:
        self._authenticate(request)
        cards = [
            ModelCard(
                id=model.model,
                created=self._created,
                kind=self._kind(model.model),
                version=model.version,
                ready=model.ready,
                reason=model.reason,
            )
            for model in self._engine.statistics().models
        ]
        body = msgspec.json.encode({"object": "list", "data": cards})
        return web.Response(body=body, content_type="application/json")

    def _kind(self, name: str) -> str:
        manifest = self._manifests.get(name)
        return "" if manifest is None else manifest.kind
