from __future__ import annotations

import pytest

from gateway.client import ConnectError, StreamError
from gateway.commands.client_errors import readable_client_errors
from gateway.commands.exits import CommandError, ExitCode
from gateway.errors import ProblemKind, RequestProblem, problem_body
from gateway.session.options import check_model, unsupported
from gateway.wire.messages import StreamKind

pytestmark = pytest.mark.unit

URL = "ws://127.0.0.1:8400"


def _told(error: Exception) -> CommandError:
    with pytest.raises(CommandError) as told, readable_client_errors(URL, "centerface"):
        raise error
    return told.value


def _refused(refusal: RequestProblem) -> StreamError:
    return StreamError(refusal.detail, problem=problem_body(refusal))


def test_unknown_model_and_model_of_another_kind_are_both_missing() -> None:
    with pytest.raises(RequestProblem) as other_kind:
        check_model(StreamKind.TOKENS, "centerface", {"centerface": "faces"})
    unknown = RequestProblem(ProblemKind.UNKNOWN_MODEL, "centerface")
    for refusal in (other_kind.value, unknown):
        assert _told(_refused(refusal)).code is ExitCode.MISSING
    assert _told(_refused(unsupported("pace"))).code is ExitCode.FAILED


def test_the_address_is_told_once() -> None:
    for text in ("the connection was lost", f"cannot reach {URL}/v1/stream: why"):
        told = _told(ConnectError(text))
        assert told.code is ExitCode.CANNOT_CONNECT
        assert str(told).count(URL) == 1
