"""The only place that turns errors into problem types, HTTP statuses and close codes.

GatewayError           root; carries ``kind``, detail, retryable, retry_after_ms
├── ConfigError        bad configuration; the text names the option; exit code 2
├── RequestProblem     answered with ``error {problem}`` or an HTTP problem body; nothing is closed
└── ConnectionFault    answered with ``error {problem}``, then the connection closes with ``code``

Close codes: 4000-4499 the client may reconnect, 4500-4999 it must not.
"""

from __future__ import annotations

from enum import Enum, IntEnum

from msgspec import UNSET

from engine.errors import EngineError, InternalError
from engine.types import DropReason
from gateway.wire.messages import ErrorMessage, Problem


class CloseCode(IntEnum):
    """WebSocket close codes in use."""

    NORMAL = 1000
    GOING_AWAY = 1001
    PROTOCOL_ERROR = 1002
    INVALID_DATA = 1007
    TOO_BIG = 1009
    INTERNAL_ERROR = 1011
    SERVICE_RESTART = 1012
    TRY_AGAIN_LATER = 1013
    SLOW_READER = 4008
    NO_PONG = 4009
    AUTH = 4501
    HELLO_TIMEOUT = 4502
    PROTOCOL = 4503
    QUOTA = 4505
    SUPERSEDED = 4510

    @property
    def may_reconnect(self) -> bool:
        """Whether a client should come back by itself after this code."""
        return self in _RETRYABLE_STANDARD or 4000 <= self <= 4499


_RETRYABLE_STANDARD = {
    CloseCode.GOING_AWAY,
    CloseCode.INTERNAL_ERROR,
    CloseCode.SERVICE_RESTART,
    CloseCode.TRY_AGAIN_LATER,
}


class ProblemKind(Enum):
    """The closed list of problem types: (slug, HTTP status, title, retryable)."""

    INVALID_MESSAGE = ("invalid-message", 400, "The message is malformed", False)
    UNEXPECTED_MESSAGE = ("unexpected-message", 409, "The message does not fit the state", False)
    UNKNOWN_TYPE = ("unknown-type", 400, "The message type is unknown", False)
    UNAUTHORIZED = ("unauthorized", 401, "A valid key is required", False)
    FORBIDDEN = ("forbidden", 403, "The request is not allowed", False)
    NOT_FOUND = ("not-found", 404, "There is no such resource", False)
    METHOD_NOT_ALLOWED = ("method-not-allowed", 405, "The method is not allowed here", False)
    UNKNOWN_MODEL = ("unknown-model", 404, "The model is not served here", False)
    UNKNOWN_STREAM = ("unknown-stream", 404, "The stream is not open", False)
    STREAM_ID_REUSED = ("stream-id-reused", 409, "Stream ids rise and are used once", False)
    UNSUPPORTED_OPTION = ("unsupported-option", 400, "The option is not supported", False)
    UNKNOWN_CODEC = ("unknown-codec", 415, "The payload is not JPEG, PNG or WebP", False)
    INVALID_PICTURE = ("invalid-picture", 422, "The picture cannot be decoded", False)
    PICTURE_TOO_LARGE = ("picture-too-large", 413, "The picture exceeds the limits", False)
    FRAME_TOO_LARGE = ("frame-too-large", 413, "The frame exceeds the byte limit", False)
    SEQ_NOT_RISING = ("seq-not-rising", 409, "Frame numbers must rise strictly", False)
    CREDIT_EXCEEDED = ("credit-exceeded", 429, "More was sent than the credit allows", True)
    INVALID_INPUT = ("invalid-input", 422, "The model refused the input", False)
    LIMIT_EXCEEDED = ("limit-exceeded", 429, "A limit is reached", True)
    OVERLOADED = ("overloaded", 503, "There is no room at the moment", True)
    UNAVAILABLE = ("unavailable", 503, "The model cannot serve at the moment", True)
    QUARANTINED = ("quarantined", 422, "The input ended its worker twice", False)
    DEADLINE_EXCEEDED = ("deadline-exceeded", 504, "The deadline passed", True)
    TIMEOUT = ("timeout", 408, "The client took too long", True)
    SLOW_READER = ("slow-reader", 408, "The client does not read", True)
    UNSUPPORTED_PROTOCOL = ("unsupported-protocol", 426, "No offered subprotocol is known", False)
    SUPERSEDED = ("superseded", 409, "A newer connection has taken over", False)
    SHUTTING_DOWN = ("shutting-down", 503, "The server is restarting", True)
    INTERNAL = ("internal", 500, "Internal error", True)

    def __init__(self, slug: str, status: int, title: str, retryable: bool) -> None:
        self.slug = slug
        self.status = status
        self.title = title
        self.retryable = retryable


class GatewayError(Exception):
    """Root of the tree; the text is safe to show to the client."""


class ConfigError(GatewayError):
    """The configuration cannot be used; the text starts with the option's name."""


class RequestProblem(GatewayError):
    """One request, stream or frame is refused; the connection lives on."""

    def __init__(
        self, kind: ProblemKind, detail: str = "", *, retry_after_ms: int | None = None
    ) -> None:
        super().__init__(f"{kind.slug}: {detail}" if detail else kind.slug)
        self.kind = kind
        self.detail = detail
        self.retry_after_ms = retry_after_ms


class ConnectionFault(RequestProblem):
    """The connection cannot go on: tell why, then close with ``code``."""

    def __init__(self, code: CloseCode, kind: ProblemKind, detail: str = "") -> None:
        super().__init__(kind, detail)
        self.code = code


def problem_body(error: RequestProblem, *, instance: str = "") -> Problem:
    """RFC 9457 members of a refusal."""
    return Problem(
        type=f"urn:clawstream:problem:{error.kind.slug}",
        title=error.kind.title,
        status=error.kind.status,
        detail=error.detail,
        instance=instance,
    )


def error_message(error: RequestProblem) -> ErrorMessage:
    """A refusal as a control message that names no stream."""
    return ErrorMessage(
        problem=problem_body(error),
        retryable=error.kind.retryable,
        retry_after_ms=UNSET if error.retry_after_ms is None else error.retry_after_ms,
    )


_ENGINE_KINDS = {
    "invalid_input": ProblemKind.INVALID_INPUT,
    "unknown_model": ProblemKind.UNKNOWN_MODEL,
    "overloaded": ProblemKind.OVERLOADED,
    "quarantined": ProblemKind.QUARANTINED,
    "unavailable": ProblemKind.UNAVAILABLE,
    "startup_failed": ProblemKind.UNAVAILABLE,
}


def from_engine_error(error: EngineError) -> RequestProblem:
    """Translate an engine error; internal faults keep their reference and nothing else."""
    kind = _ENGINE_KINDS.get(error.code, ProblemKind.INTERNAL)
    detail = error.detail if kind is not ProblemKind.INTERNAL else _internal_detail(error)
    retry_after_ms = None if error.retry_after_s is None else round(error.retry_after_s * 1000)
    return RequestProblem(kind, detail, retry_after_ms=retry_after_ms)


def from_dropped(reason: DropReason) -> RequestProblem:
    """What a caller is told who waits for an answer that was given up."""
    match reason:
        case DropReason.DEADLINE:
            return RequestProblem(ProblemKind.DEADLINE_EXCEEDED)
        case DropReason.SHUTDOWN | DropReason.CANCELLED:
            return RequestProblem(ProblemKind.SHUTTING_DOWN, retry_after_ms=1000)
        case _:
            return RequestProblem(ProblemKind.OVERLOADED, reason.value, retry_after_ms=1000)


def _internal_detail(error: EngineError) -> str:
    reference = error.reference if isinstance(error, InternalError) else InternalError().reference
    return f"reference {reference}"
