"""Errors of the engine, one tree:

EngineError            root; carries ``code`` (stable, snake_case), ``retryable``, ``retry_after_s``
├── InvalidInput       the caller's item is at fault; the detail may be shown to the caller
├── UnknownModel       no such model or version
├── Overloaded         no room now; try again after ``retry_after_s``
├── Quarantined        the item was in flight when its worker died, twice
├── Unavailable        the model cannot serve (starting, circuit open, closed); retryable
├── StartupError       a worker could not start; the text says what to do
└── InternalError      a fault of ours; ``reference`` is also in the log line

Only ``gateway.errors`` maps these to HTTP statuses, problem types and close codes.
"""

from __future__ import annotations

import secrets


class EngineError(Exception):
    """Root of the tree. The message is safe to show to the caller."""

    code = "engine_error"
    retryable = False

    def __init__(self, detail: str, *, retry_after_s: float | None = None) -> None:
        super().__init__(detail)
        self.detail = detail
        self.retry_after_s = retry_after_s


class InvalidInput(EngineError):
    """The item cannot be processed whatever the engine's state: do not send it again."""

    code = "invalid_input"


class UnknownModel(EngineError):
    """No model of that name, or no such version."""

    code = "unknown_model"


class Overloaded(EngineError):
    """No room now."""

    code = "overloaded"
    retryable = True


class Quarantined(EngineError):
    """The item was being processed, once in company and once alone, when its worker died."""

    code = "quarantined"


class Unavailable(EngineError):
    """The model cannot serve at the moment."""

    code = "unavailable"
    retryable = True


class StartupError(EngineError):
    """A worker could not load its model."""

    code = "startup_failed"


class InternalError(EngineError):
    """A fault of ours. The caller gets a fixed text and ``reference``; the log has the rest."""

    code = "internal_error"

    def __init__(self, reference: str | None = None) -> None:
        self.reference = reference or secrets.token_hex(6)
        super().__init__(f"internal error, reference {self.reference}")
