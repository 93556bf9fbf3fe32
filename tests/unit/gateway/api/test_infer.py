"""Checks before the engine sees a picture, and outcomes as HTTP problems."""

from __future__ import annotations

import pytest

from engine.errors import InvalidInput
from engine.types import Cancelled, Dropped, DropReason, Failed, Outcome, Result
from gateway.api.infer import check_picture, result_of
from gateway.config_sections import LimitsConfig
from gateway.errors import ProblemKind, RequestProblem
from tests.fakes.picture_headers import jpeg_header

pytestmark = pytest.mark.unit

LIMITS = LimitsConfig(max_width=640, max_height=640, max_pixels=640 * 480)


def test_picture_within_the_limits_passes() -> None:
    check_picture(jpeg_header(640, 480), LIMITS)


@pytest.mark.parametrize(
    ("picture", "kind"),
    [
        (b"", ProblemKind.UNKNOWN_CODEC),
        (b"GIF89a", ProblemKind.UNKNOWN_CODEC),
        (jpeg_header(640, 480)[:10], ProblemKind.INVALID_PICTURE),
        (jpeg_header(65500, 65500), ProblemKind.PICTURE_TOO_LARGE),
        (jpeg_header(641, 10), ProblemKind.PICTURE_TOO_LARGE),
        (jpeg_header(10, 641), ProblemKind.PICTURE_TOO_LARGE),
        (jpeg_header(640, 481), ProblemKind.PICTURE_TOO_LARGE),
    ],
)
def test_bad_header_is_refused(picture: bytes, kind: ProblemKind) -> None:
    with pytest.raises(RequestProblem) as caught:
        check_picture(picture, LIMITS)
    assert caught.value.kind is kind


@pytest.mark.parametrize(
    ("outcome", "kind"),
    [
        (Failed(InvalidInput("no")), ProblemKind.INVALID_INPUT),
        (Dropped(DropReason.DEADLINE), ProblemKind.DEADLINE_EXCEEDED),
        (Dropped(DropReason.SHUTDOWN), ProblemKind.SHUTTING_DOWN),
        (Dropped(DropReason.WORKER_LOST), ProblemKind.OVERLOADED),
        (Cancelled(), ProblemKind.SHUTTING_DOWN),
    ],
)
def test_outcome_without_a_result_is_a_problem(outcome: Outcome, kind: ProblemKind) -> None:
    with pytest.raises(RequestProblem) as caught:
        result_of(outcome)
    assert caught.value.kind is kind


def test_result_is_itself() -> None:
    result = Result(data=b"{}", model="m", version="1")
    assert result_of(result) is result
