"""Which names a path's query may have; one that nobody reads would be a wish passed over."""

from __future__ import annotations

from aiohttp import web
from aiohttp.typedefs import Handler

from gateway.errors import ProblemKind, RequestProblem

_INFER = "/v1/infer/{model}"
_INFER_NAMES = ("annotate", "deadline_ms")
# By route. Paths that read no query take any: other programs' clients send their own.
NAMES = {
    _INFER: _INFER_NAMES,
    f"{_INFER}/versions/{{version}}": _INFER_NAMES,
    "/v1/stream": ("ticket",),
}


@web.middleware
async def queries_middleware(request: web.Request, handler: Handler) -> web.StreamResponse:
    """Raises RequestProblem(UNSUPPORTED_OPTION) for a name that the path does not know."""
    resource = request.match_info.route.resource
    path = "" if resource is None else resource.canonical
    known = NAMES.get(path)
    if known is not None:
        for name in request.query:
            if name not in known:
                raise _unknown(name, path, known)
    return await handler(request)


def _unknown(name: str, path: str, known: tuple[str, ...]) -> RequestProblem:
    detail = f"query {name!r} is unknown here; known: {', '.join(known)}"
    if name == "version" and path.startswith(_INFER):
        detail += f"; a version is pinned by the path, {_INFER}/versions/N"
    return RequestProblem(ProblemKind.UNSUPPORTED_OPTION, detail)
