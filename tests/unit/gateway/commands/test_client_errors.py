from __future__ import annotations

import pytest

from gateway.client import AuthError, ConnectError, StreamError
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


def test_who_asks_a_model_that_is_not_served_is_told_what_to_do() -> None:
    refusal = _refused(RequestProblem(ProblemKind.UNKNOWN_MODEL, "no model 'm'"))
    with (
        pytest.raises(CommandError) as told,
        readable_client_errors(URL, "m", "`clawstream demo --chat` serves one"),
    ):
        raise refusal
    text = f"{URL}: no model 'm' is served there; /v1/models lists those that are"
    assert str(told.value) == f"{text}; `clawstream demo --chat` serves one"


def test_a_wrong_key_says_where_the_right_one_goes() -> None:
    told = _told(AuthError("A valid key is required: the key is not valid"))
    assert told.code is ExitCode.CANNOT_CONNECT
    assert str(told).endswith(": the key is not valid; set CLAWSTREAM_API_KEY")


def test_the_address_is_told_once() -> None:
    for text in ("the connection was lost", f"cannot reach {URL}/v1/stream: why"):
        told = _told(ConnectError(text))
        assert told.code is ExitCode.CANNOT_CONNECT
        assert str(told).count(URL) == 1


@pytest.mark.parametrize(
    ("num_served", "listed"),
    [(2, "m0, m1"), (10, "m0, m1, m2, m3, m4, m5, m6, m7, m8, m9")],
)
def test_models_that_are_served_are_listed(num_served: int, listed: str) -> None:
    assert _told_with(num_served) == f"those that are: {listed}"


def test_many_models_are_not_all_listed() -> None:
    listed = "m0, m1, m2, m3, m4, m5, m6, m7, m8, m9 and 3 more; /v1/models lists them"
    assert _told_with(13) == f"those that are: {listed}"


def _told_with(num_served: int) -> str:
    """What comes after the model that was asked for."""
    refusal = _refused(RequestProblem(ProblemKind.UNKNOWN_MODEL, "no model 'm'"))
    served = [f"m{number}" for number in range(num_served)]
    with (
        pytest.raises(CommandError) as told,
        readable_client_errors(URL, "m", served=lambda: served),
    ):
        raise refusal
    return str(told.value).removeprefix(f"{URL}: no model 'm' is served there; ")
