from __future__ import annotations

from datetime import UTC, datetime

import pytest

from engine.errors import EngineError, InvalidInput, Overloaded, Unavailable
from engine.llm.upstream.failures import (
    MAX_DETAIL_CHARS,
    Misconfigured,
    failure_of_status,
    parse_retry_after,
)

pytestmark = pytest.mark.unit

NOW = datetime(2026, 1, 1, 12, 0, 0, tzinfo=UTC)


@pytest.mark.parametrize(
    ("status", "kind", "is_transient"),
    [
        (400, InvalidInput, False),
        (413, InvalidInput, False),
        (422, InvalidInput, False),
        (429, Overloaded, True),
        (408, Unavailable, True),
        (500, Unavailable, True),
        (503, Unavailable, True),
    ],
)
def test_statuses_become_errors(status: int, kind: type[EngineError], is_transient: bool) -> None:
    failure = failure_of_status(status, b"", None, NOW)
    assert type(failure.error) is kind
    assert failure.is_transient == is_transient


@pytest.mark.parametrize("status", [301, 401, 403, 404, 405])
def test_what_the_operator_must_change_is_not_told_to_callers(status: int) -> None:
    with pytest.raises(Misconfigured, match=f"{status}: because"):
        failure_of_status(status, b'{"detail": "because"}', None, NOW)


@pytest.mark.parametrize(
    ("body", "expected"),
    [
        (b'{"error": {"message": "too\\n long", "type": "x"}}', "too long"),
        (b'{"error": "too long"}', "too long"),
        (b'{"object": "error", "message": "too long"}', "too long"),
        (b'{"detail": "too long"}', "too long"),
        (b"<html>", "the upstream server refused the prompt (400)"),
        (b'{"error": {"message": null}}', "the upstream server refused the prompt (400)"),
        (b'{"error": 3}', "the upstream server refused the prompt (400)"),
    ],
)
def test_the_servers_words_are_told(body: bytes, expected: str) -> None:
    assert failure_of_status(400, body, None, NOW).error.detail == expected


def test_the_servers_words_are_cut() -> None:
    body = b'{"error": "' + b"x" * 10_000 + b'"}'
    assert len(failure_of_status(400, body, None, NOW).error.detail) == MAX_DETAIL_CHARS


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        (None, None),
        ("0", 0.0),
        ("7", 7.0),
        ("9" * 400, float("inf")),
        ("Thu, 01 Jan 2026 12:00:30 GMT", 30.0),
        ("Thu, 01 Jan 2026 11:00:00 GMT", 0.0),
        ("Thu, 01 Jan 2026 12:00:30 -0000", 30.0),
        ("soon", None),
        ("-1", None),
        ("\u0661", None),
        ("Thu, 99 Foo 2026", None),
    ],
)
def test_both_forms_of_retry_after_are_read(value: str | None, expected: float | None) -> None:
    assert parse_retry_after(value, NOW) == expected


def test_the_wait_goes_with_the_failure() -> None:
    failure = failure_of_status(429, b"", "12", NOW)
    assert failure.retry_after_s == failure.error.retry_after_s == 12.0
