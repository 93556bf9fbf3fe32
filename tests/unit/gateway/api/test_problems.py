"""Problem responses."""

from __future__ import annotations

import json

import pytest
from aiohttp import web
from aiohttp.test_utils import make_mocked_request

from engine.errors import Unavailable
from gateway.api.problems import problem_response, problems_middleware
from gateway.errors import ProblemKind, RequestProblem

pytestmark = pytest.mark.unit


async def answer_to(error: Exception) -> web.Response:
    async def fail(request: web.Request) -> web.StreamResponse:
        raise error

    response = await problems_middleware(make_mocked_request("GET", "/x"), fail)
    assert isinstance(response, web.Response)
    return response


def body_of(response: web.Response) -> dict[str, object]:
    assert response.content_type == "application/problem+json"
    assert isinstance(response.body, bytes)
    body = json.loads(response.body)
    assert body["status"] == response.status
    assert isinstance(body, dict)
    return body


@pytest.mark.parametrize("kind", list(ProblemKind))
def test_every_kind_has_a_body_with_its_status(kind: ProblemKind) -> None:
    response = problem_response(RequestProblem(kind, "why"), instance="/x")
    body = body_of(response)
    assert body["type"] == f"urn:clawstream:problem:{kind.slug}"
    assert (body["detail"], body["instance"]) == ("why", "/x")


def test_retry_after_is_rounded_up_to_seconds() -> None:
    problem = RequestProblem(ProblemKind.OVERLOADED, retry_after_ms=1200)
    assert problem_response(problem).headers["Retry-After"] == "2"


async def test_unauthorized_and_unsupported_protocol_carry_their_headers() -> None:
    unauthorized = await answer_to(RequestProblem(ProblemKind.UNAUTHORIZED))
    assert unauthorized.headers["WWW-Authenticate"].startswith("Bearer")
    upgrade = await answer_to(RequestProblem(ProblemKind.UNSUPPORTED_PROTOCOL))
    assert upgrade.headers["Upgrade"] == "websocket"


async def test_engine_errors_are_translated() -> None:
    response = await answer_to(Unavailable("warming up"))
    assert response.status == 503
    assert body_of(response)["detail"] == "warming up"


async def test_aiohttp_errors_become_problems() -> None:
    response = await answer_to(web.HTTPMethodNotAllowed("POST", ["GET"]))
    assert response.headers["Allow"] == "GET"
    assert body_of(response)["type"] == "urn:clawstream:problem:method-not-allowed"
    assert (await answer_to(web.HTTPNotFound())).status == 404


async def test_fault_of_ours_shows_only_the_reference_that_is_logged(
    caplog: pytest.LogCaptureFixture,
) -> None:
    response = await answer_to(RuntimeError("secret"))
    detail = str(body_of(response)["detail"])
    assert response.status == 500
    assert "secret" not in detail
    assert detail.removeprefix("reference ") in caplog.text
