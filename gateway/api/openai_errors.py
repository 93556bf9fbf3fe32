"""Errors of the OpenAI-compatible paths, in the shape that their clients read."""

from __future__ import annotations

import logging
import math
import secrets

import msgspec
from aiohttp import web
from aiohttp.typedefs import Handler

from engine.errors import EngineError
from gateway.errors import ProblemKind, RequestProblem, from_engine_error

PATHS = frozenset({"/v1/chat/completions", "/v1/completions"})


logger = logging.getLogger(__name__)

# Kinds whose status or words differ from ours: (status, type, code).
_WORDS = {
    ProblemKind.UNAUTHORIZED: (401, "invalid_request_error", "invalid_api_key"),
    ProblemKind.UNKNOWN_MODEL: (404, "invalid_request_error", "model_not_found"),
    ProblemKind.INVALID_INPUT: (400, "invalid_request_error", "invalid_input"),
    ProblemKind.LIMIT_EXCEEDED: (429, "rate_limit_error", "rate_limit_exceeded"),
}


class BadParameter(RequestProblem):
    """One member of the body cannot be served; ``param`` names it."""

    def __init__(self, param: str | None, detail: str) -> None:
        super().__init__(ProblemKind.UNSUPPORTED_OPTION, detail)
        self.param = param


class ErrorDetail(msgspec.Struct, frozen=True, kw_only=True):
    """What went wrong; ``code`` is stable."""

    message: str
    type: str
    param: str | None
    code: str


class ErrorBody(msgspec.Struct, frozen=True, kw_only=True):
    """The whole body, also of an event in a stream that has begun."""

    error: ErrorDetail


def error_body(problem: RequestProblem) -> ErrorBody:
    """The problem in OpenAI's words."""
    kind = problem.kind
    _, error_type, code = _WORDS.get(kind, (0, _type_of(kind), kind.slug.replace("-", "_")))
    param = problem.param if isinstance(problem, BadParameter) else None
    message = f"{kind.title}: {problem.detail}" if problem.detail else kind.title
    return ErrorBody(error=ErrorDetail(message=message, type=error_type, param=param, code=code))


def error_response(problem: RequestProblem) -> web.Response:
    """The body with its status, and ``Retry-After`` where waiting helps."""
    status = _WORDS[problem.kind][0] if problem.kind in _WORDS else problem.kind.status
    response = web.Response(
        body=msgspec.json.encode(error_body(problem)),
        status=status,
        content_type="application/json",
    )
    if problem.retry_after_ms is not None:
        response.headers["Retry-After"] = str(math.ceil(problem.retry_after_ms / 1000))
    if problem.kind is ProblemKind.UNAUTHORIZED:
        response.headers["WWW-Authenticate"] = 'Bearer realm="clawstream"'
    return response


@web.middleware
async def openai_errors_middleware(request: web.Request, handler: Handler) -> web.StreamResponse:
    """Turn what a handler of ``PATHS`` raises into OpenAI's shape; everything else passes."""
    if request.path not in PATHS:
        return await handler(request)
    try:
        return await handler(request)
    except web.HTTPMethodNotAllowed:
        return error_response(RequestProblem(ProblemKind.METHOD_NOT_ALLOWED, "send POST"))
    except RequestProblem as problem:
        return error_response(problem)
    except EngineError as error:
        return error_response(from_engine_error(error))
    except (web.HTTPException, ConnectionError):
        raise
    except Exception:  # task boundary: the client gets the reference that the log line has
        reference = secrets.token_hex(6)
        logger.exception("%s failed, reference %s", request.path, reference)
        return error_response(RequestProblem(ProblemKind.INTERNAL, f"reference {reference}"))


def _type_of(kind: ProblemKind) -> str:
    if kind.status == 429:
        return "rate_limit_error"
    return "server_error" if kind.status >= 500 else "invalid_request_error"
