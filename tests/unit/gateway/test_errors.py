"""Errors to problem types, statuses and close codes."""

from __future__ import annotations

import pytest

from engine.errors import (
    EngineError,
    InternalError,
    InvalidInput,
    Overloaded,
    Quarantined,
    StartupError,
    Unavailable,
    UnknownModel,
)
from engine.types import DropReason
from gateway.errors import (
    CloseCode,
    ProblemKind,
    RequestProblem,
    error_message,
    from_dropped,
    from_engine_error,
    problem_body,
)

pytestmark = pytest.mark.unit


@pytest.mark.parametrize(
    ("error", "kind"),
    [
        (InvalidInput("x"), ProblemKind.INVALID_INPUT),
        (UnknownModel("x"), ProblemKind.UNKNOWN_MODEL),
        (Overloaded("x"), ProblemKind.OVERLOADED),
        (Quarantined("x"), ProblemKind.QUARANTINED),
        (Unavailable("x"), ProblemKind.UNAVAILABLE),
        (StartupError("x"), ProblemKind.UNAVAILABLE),
    ],
)
def test_engine_errors_keep_their_detail(error: EngineError, kind: ProblemKind) -> None:
    problem = from_engine_error(error)
    assert (problem.kind, problem.detail) == (kind, "x")
    assert problem.kind.retryable == error.retryable or isinstance(error, StartupError)


def test_internal_faults_tell_nothing_but_a_reference() -> None:
    known = from_engine_error(InternalError("abc123"))
    assert (known.kind, known.detail) == (ProblemKind.INTERNAL, "reference abc123")
    unknown = from_engine_error(EngineError("secret detail"))
    assert "secret" not in unknown.detail
    assert unknown.detail.startswith("reference ")


def test_retry_after_is_carried_in_milliseconds() -> None:
    problem = from_engine_error(Overloaded("x", retry_after_s=0.25))
    assert problem.retry_after_ms == 250
    assert error_message(problem).retry_after_ms == 250


def test_problem_types_are_distinct_and_named_by_their_slug() -> None:
    kinds = list(ProblemKind)
    assert len({kind.slug for kind in kinds}) == len(kinds)
    body = problem_body(RequestProblem(ProblemKind.NOT_FOUND, "gone"), instance="/x")
    assert body.type == "urn:clawstream:problem:not-found"
    assert (body.status, body.detail, body.instance) == (404, "gone", "/x")


@pytest.mark.parametrize("code", list(CloseCode))
def test_close_codes_say_whether_to_come_back(code: CloseCode) -> None:
    if 4000 <= code <= 4499:
        assert code.may_reconnect
    if code >= 4500 or code in (1000, 1002, 1007, 1009):
        assert not code.may_reconnect


@pytest.mark.parametrize(
    ("reason", "kind"),
    [
        (DropReason.DEADLINE, ProblemKind.DEADLINE_EXCEEDED),
        (DropReason.SHUTDOWN, ProblemKind.SHUTTING_DOWN),
        (DropReason.WORKER_LOST, ProblemKind.OVERLOADED),
    ],
)
def test_who_waits_for_an_answer_that_was_given_up_may_ask_again(
    reason: DropReason, kind: ProblemKind
) -> None:
    problem = from_dropped(reason)
    assert problem.kind is kind
    assert problem.kind.retryable
