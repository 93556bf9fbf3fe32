"""From what can go wrong with an upstream server to errors of the engine. Pure."""

from __future__ import annotations

from datetime import UTC, datetime
from email.utils import parsedate_to_datetime
from http import HTTPStatus

import msgspec

from engine.errors import EngineError, InvalidInput, Overloaded, Unavailable

MAX_DETAIL_CHARS = 300
_CALLERS_FAULT = {
    HTTPStatus.BAD_REQUEST,
    HTTPStatus.REQUEST_ENTITY_TOO_LARGE,
    HTTPStatus.UNPROCESSABLE_ENTITY,
}
_OVERLOADED = {HTTPStatus.TOO_MANY_REQUESTS}
_CREDENTIALS = {HTTPStatus.UNAUTHORIZED, HTTPStatus.FORBIDDEN}


class AttemptFailed(Exception):
    """One attempt failed with ``error``. ``is_transient``: the next may succeed, if no token was
    told yet; not before ``retry_after_s`` if the server said so."""

    def __init__(
        self, error: EngineError, *, is_transient: bool, retry_after_s: float | None = None
    ) -> None:
        super().__init__(error.detail)
        self.error = error
        self.is_transient = is_transient
        self.retry_after_s = retry_after_s


class Misconfigured(Exception):
    """Whoever runs the gateway must change something; the text is for the log, not for callers."""


def failure_of_status(
    status: int, body: bytes, retry_after: str | None, now: datetime
) -> AttemptFailed:
    """An answer that is not 200.

    Raises:
        Misconfigured: the gateway's key or URL is at fault.
    """
    message = _message(body)
    said = f"{status}: {message}" if message else f"{status}"
    if status in _CALLERS_FAULT:
        detail = message or f"the upstream server refused the prompt ({status})"
        return AttemptFailed(InvalidInput(detail), is_transient=False)
    wait_s = parse_retry_after(retry_after, now)
    if status in _OVERLOADED:
        error: EngineError = Overloaded("the upstream server is busy", retry_after_s=wait_s)
        return AttemptFailed(error, is_transient=True, retry_after_s=wait_s)
    if status in _CREDENTIALS:
        raise Misconfigured(f"the upstream server refuses the api_key ({said})")
    if status >= 500 or status == HTTPStatus.REQUEST_TIMEOUT:
        error = Unavailable(f"the upstream server failed ({status})", retry_after_s=wait_s)
        return AttemptFailed(error, is_transient=True, retry_after_s=wait_s)
    raise Misconfigured(f"the upstream server does not serve this url and model ({said})")


def parse_retry_after(value: str | None, now: datetime) -> float | None:
    """Seconds, or a date (RFC 9110, 10.2.3); None when it is absent or neither."""
    if value is None:
        return None
    if value.isascii() and value.isdigit():
        return float(value) if len(value) < 10 else float("inf")
    try:
        date = parsedate_to_datetime(value)
        date = date if date.tzinfo is not None else date.replace(tzinfo=UTC)
        return max(0.0, (date - now).total_seconds())
    except (ValueError, OverflowError):
        return None


class _ErrorBody(msgspec.Struct):
    """``error`` is OpenAI's, the others are what frameworks send."""

    error: dict[str, object] | str | None = None
    message: str | None = None
    detail: str | None = None


def _message(body: bytes) -> str:
    """The readable part of an error body, on one line, cut to a bounded length."""
    try:
        found = msgspec.json.decode(body, type=_ErrorBody)
    except msgspec.MsgspecError:
        return ""
    error = found.error.get("message") if isinstance(found.error, dict) else found.error
    text = error or found.message or found.detail or ""
    return " ".join(str(text).split())[:MAX_DETAIL_CHARS]
