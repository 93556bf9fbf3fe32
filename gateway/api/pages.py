"""The demo page, its modules and the clips, with a policy that lets nothing foreign in."""

from __future__ import annotations

import importlib.resources
from collections.abc import Callable, Iterator
from importlib.resources.abc import Traversable
from pathlib import Path

from aiohttp import web

from engine.errors import EngineError
from gateway.errors import ProblemKind, RequestProblem

CONTENT_SECURITY_POLICY = "; ".join(
    (
        "default-src 'none'",
        "script-src 'self'",
        "worker-src 'self'",
        "style-src 'self'",
        "img-src 'self' blob: data:",
        "media-src 'self' blob:",
        "connect-src 'self'",
        "base-uri 'none'",
        "form-action 'none'",
        "frame-ancestors 'none'",
    )
)
SECURITY_HEADERS = {
    "Content-Security-Policy": CONTENT_SECURITY_POLICY,
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Permissions-Policy": "camera=(self), microphone=()",
    "Server": "clawstream",
}
_TYPES = {
    ".html": "text/html; charset=utf-8",
    ".css": "text/css; charset=utf-8",
    ".js": "text/javascript; charset=utf-8",
    ".svg": "image/svg+xml",
    ".png": "image/png",
    ".txt": "text/plain; charset=utf-8",
}


async def add_security_headers(_: web.Request, response: web.StreamResponse) -> None:
    """Signal handler for every response of a handler, errors included."""
    response.headers.update(SECURITY_HEADERS)


class PagesApi:
    """Serves the files of the ``web_demo`` package and the store's clips, and nothing beside."""

    def __init__(self, clip_path: Callable[[str], Path]) -> None:
        self._clip_path = clip_path
        root = importlib.resources.files("web_demo")
        self._files = dict(_servable(root, "/"))
        if "/index.html" in self._files:
            self._files["/"] = self._files["/index.html"]

    def routes(self) -> list[web.RouteDef]:
        return [
            web.get("/clips/{name}.mp4", self.clip),
            *(web.get(path, self.file) for path in self._files),
        ]

    async def file(self, request: web.Request) -> web.StreamResponse:
        file = self._files.get(request.path)
        if file is None:  # the router matched an equivalent spelling, such as /%6as/…
            raise RequestProblem(ProblemKind.NOT_FOUND)
        is_html = file.suffix == ".html"
        headers = {
            "Content-Type": _TYPES[file.suffix],
            "Cache-Control": "no-store" if is_html else "no-cache",
        }
        return web.FileResponse(file, headers=headers)

    async def clip(self, request: web.Request) -> web.StreamResponse:
        try:
            path = self._clip_path(request.match_info["name"])
        except EngineError:
            raise RequestProblem(
                ProblemKind.NOT_FOUND, "no such clip here (clawstream models pull NAME)"
            ) from None
        headers = {"Content-Type": "video/mp4", "Cache-Control": "no-cache"}
        return web.FileResponse(path, headers=headers)


def _servable(folder: Traversable, prefix: str) -> Iterator[tuple[str, Path]]:
    for entry in folder.iterdir():
        if entry.is_dir():
            yield from _servable(entry, f"{prefix}{entry.name}/")
        elif Path(entry.name).suffix in _TYPES:
            yield f"{prefix}{entry.name}", Path(str(entry))
