"""Problems in OpenAI's words."""

from __future__ import annotations

import msgspec
import pytest

from gateway.api.openai_errors import BadParameter, error_response
from gateway.errors import ProblemKind, RequestProblem

pytestmark = pytest.mark.unit


@pytest.mark.parametrize(
    ("kind", "status", "error_type", "code"),
    [
        (ProblemKind.UNSUPPORTED_OPTION, 400, "invalid_request_error", "unsupported_option"),
        (ProblemKind.INVALID_INPUT, 400, "invalid_request_error", "invalid_input"),
        (ProblemKind.UNAUTHORIZED, 401, "invalid_request_error", "invalid_api_key"),
        (ProblemKind.UNKNOWN_MODEL, 404, "invalid_request_error", "model_not_found"),
        (ProblemKind.LIMIT_EXCEEDED, 429, "rate_limit_error", "rate_limit_exceeded"),
        (ProblemKind.INTERNAL, 500, "server_error", "internal"),
        (ProblemKind.OVERLOADED, 503, "server_error", "overloaded"),
        (ProblemKind.DEADLINE_EXCEEDED, 504, "server_error", "deadline_exceeded"),
    ],
)
def test_each_problem_has_a_status_a_type_and_a_code(
    kind: ProblemKind, status: int, error_type: str, code: str
) -> None:
    response = error_response(RequestProblem(kind, "why"))
    assert isinstance(response.body, bytes)
    error = msgspec.json.decode(response.body)["error"]
    assert response.status == status
    assert (error["type"], error["code"], error["param"]) == (error_type, code, None)
    assert error["message"].endswith(": why")


def test_a_bad_parameter_is_named() -> None:
    response = error_response(BadParameter("n", "n is not supported"))
    assert isinstance(response.body, bytes)
    assert msgspec.json.decode(response.body)["error"]["param"] == "n"


def test_waiting_is_told_in_whole_seconds() -> None:
    problem = RequestProblem(ProblemKind.OVERLOADED, retry_after_ms=1200)
    assert error_response(problem).headers["Retry-After"] == "2"
