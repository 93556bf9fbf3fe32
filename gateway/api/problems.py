"""Every HTTP error as an RFC 9457 problem body, and nothing internal in any of them."""

from __future__ import annotations

import logging
import math
import secrets

import msgspec
from aiohttp import web
from aiohttp.typedefs import Handler

from engine.errors import EngineError
from gateway.api.pages import SECURITY_HEADERS
from gateway.errors import ProblemKind, RequestProblem, from_engine_error, problem_body

logger = logging.getLogger(__name__)


_KINDS = {
    400: ProblemKind.INVALID_MESSAGE,
    401: ProblemKind.UNAUTHORIZED,
    403: ProblemKind.FORBIDDEN,
    404: ProblemKind.NOT_FOUND,
    405: ProblemKind.METHOD_NOT_ALLOWED,
    408: ProblemKind.TIMEOUT,
    413: ProblemKind.FRAME_TOO_LARGE,
    415: ProblemKind.UNKNOWN_CODEC,
    426: ProblemKind.UNSUPPORTED_PROTOCOL,
}


def problem_response(problem: RequestProblem, *, instance: str = "") -> web.Response:
    """The problem body with its status, and ``Retry-After`` where waiting helps."""
    response = web.Response(
        body=msgspec.json.encode(problem_body(problem, instance=instance)),
        status=problem.kind.status,
        content_type="application/problem+json",
    )
    if problem.retry_after_ms is not None:
        response.headers["Retry-After"] = str(math.ceil(problem.retry_after_ms / 1000))
    if problem.kind is ProblemKind.UNAUTHORIZED:
        response.headers["WWW-Authenticate"] = 'Bearer realm="clawstream"'
    if problem.kind is ProblemKind.UNSUPPORTED_PROTOCOL:
        response.headers["Upgrade"] = "websocket"
    return response


@web.middleware
async def problems_middleware(request: web.Request, handler: Handler) -> web.StreamResponse:
    """Turn whatever a handler raises into a problem response."""
    try:
        return await handler(request)
    except web.HTTPException as error:
        if error.status < 400:
            raise  # a redirect is an answer
        return _from_http_exception(request, error)
    except RequestProblem as problem:
        return problem_response(problem, instance=request.path)
    except EngineError as error:
        return problem_response(from_engine_error(error), instance=request.path)
    except web.RequestPayloadError:  # its text quotes the body
        malformed = RequestProblem(ProblemKind.INVALID_MESSAGE, "the body breaks HTTP's rules")
        return problem_response(malformed, instance=request.path)
    except ConnectionError:
        return web.Response(status=400)  # the client has left: nobody will read this
    except Exception:  # task boundary: the client gets the reference that the log line has
        reference = secrets.token_hex(6)
        logger.exception("%s %s failed, reference %s", request.method, request.path, reference)
        fault = RequestProblem(ProblemKind.INTERNAL, f"reference {reference}")
        return problem_response(fault, instance=request.path)


def error_response(status: int) -> web.Response:
    """The answer where no middleware is: to what cannot be parsed as a request (400)."""
    kind = _KINDS.get(status, ProblemKind.INTERNAL)
    response = problem_response(RequestProblem(kind))
    response.headers.update(SECURITY_HEADERS)
    return response


def _from_http_exception(request: web.Request, error: web.HTTPException) -> web.Response:
    kind = _KINDS.get(error.status, ProblemKind.INVALID_MESSAGE)
    detail = ""
    if isinstance(error, web.HTTPMethodNotAllowed):
        detail = f"allowed: {', '.join(sorted(error.allowed_methods))}"
    response = problem_response(RequestProblem(kind, detail), instance=request.path)
    if "Allow" in error.headers:
        response.headers["Allow"] = error.headers["Allow"]
    return response
