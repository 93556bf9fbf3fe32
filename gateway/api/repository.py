"""``/v2/repository``: which versions serve, and how to change that, spelt as Triton does."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator

import msgspec
from aiohttp import web

from engine.base import Engine, ModelStatistics, Reloadable
from engine.errors import Unavailable
from gateway.errors import ProblemKind, RequestProblem

MAX_BODY_BYTES = 4096
BODY_TIMEOUT_S = 5.0


class IndexEntry(msgspec.Struct, frozen=True, kw_only=True):
    """One version. ``state`` is ``READY`` or ``UNAVAILABLE``; ``role`` says more (see
    :class:`engine.base.VersionStatistics`)."""

    name: str
    version: str
    state: str
    reason: str
    role: str


class LoadParameters(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """``version`` picks one; without it the policy does."""

    version: str | None = None


class LoadRequest(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    parameters: LoadParameters = LoadParameters()


class Loaded(msgspec.Struct, frozen=True):
    """What serves after a load."""

    name: str
    version: str


class RepositoryApi:
    """Whoever may use the API may also load and unload."""

    def __init__(self, engine: Engine, authenticate: Callable[[web.Request], str]) -> None:
        self._engine = engine
        self._authenticate = authenticate

    def routes(self) -> list[web.RouteDef]:
        one = "/v2/repository/models/{name}"
        return [
            web.post("/v2/repository/index", self.index),
            web.post(f"{one}/load", self.load),
            web.post(f"{one}/unload", self.unload),
        ]

    async def index(self, request: web.Request) -> web.Response:
        self._authenticate(request)
        models = self._engine.statistics().models
        return _json_response([entry for model in models for entry in index_entries(model)])

    async def load(self, request: web.Request) -> web.Response:
        """Answers when the version serves, or says why it does not."""
        self._authenticate(request)
        name = request.match_info["name"]
        wanted = await _read_body(request)
        version = await self._reloadable(name).reload(name, wanted.parameters.version)
        return _json_response(Loaded(name, version))

    async def unload(self, request: web.Request) -> web.Response:
        self._authenticate(request)
        name = request.match_info["name"]
        await self._reloadable(name).unload(name)
        return _json_response({"name": name})

    def _reloadable(self, name: str) -> Reloadable:
        if not isinstance(self._engine, Reloadable):
            raise Unavailable(f"model {name!r} cannot be reloaded")
        return self._engine


def index_entries(model: ModelStatistics) -> Iterator[IndexEntry]:
    """Every version of a model; a model that knows none is one entry itself."""
    for each in model.versions:
        serves = each.state not in ("rejected", "draining") and not each.reason
        yield IndexEntry(
            name=model.model,
            version=each.version,
            state="READY" if serves else "UNAVAILABLE",
            reason=each.reason,
            role=each.state,
        )
    if not model.versions:
        yield IndexEntry(
            name=model.model,
            version=model.version,
            state="READY" if model.ready else "UNAVAILABLE",
            reason=model.reason,
            role="active" if model.ready else "",
        )


async def _read_body(request: web.Request) -> LoadRequest:
    body = bytearray()
    try:
        async with asyncio.timeout(BODY_TIMEOUT_S):
            async for chunk in request.content.iter_any():
                body += chunk
                if len(body) > MAX_BODY_BYTES:
                    detail = f"the body has at most {MAX_BODY_BYTES} bytes"
                    raise RequestProblem(ProblemKind.FRAME_TOO_LARGE, detail)
    except TimeoutError:
        raise RequestProblem(ProblemKind.TIMEOUT, "the body did not arrive") from None
    if not body.strip():
        return LoadRequest()
    try:
        return msgspec.json.decode(body, type=LoadRequest)
    except msgspec.MsgspecError as error:
        raise RequestProblem(ProblemKind.INVALID_MESSAGE, str(error)) from None


def _json_response(answer: object) -> web.Response:
    return web.Response(body=msgspec.json.encode(answer), content_type="application/json")
