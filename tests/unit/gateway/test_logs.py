"""Log lines: formats, throttling, and what never gets into them."""

from __future__ import annotations

import io
import json
import logging
from collections.abc import Iterator

import pytest
from aiohttp.http_exceptions import BadHttpMessage

from gateway.config_sections import LoggingConfig
from gateway.logs import WarningThrottle, configure_logging

pytestmark = pytest.mark.unit


@pytest.fixture(autouse=True)
def _restored_root_logger() -> Iterator[None]:
    root = logging.getLogger()
    handlers, level = root.handlers[:], root.level
    yield
    root.handlers[:], root.level = handlers, level


def configured(**options: str) -> io.StringIO:
    stream = io.StringIO()
    configure_logging(LoggingConfig.model_validate(options), stream)
    return stream


def record(created: float, level: int = logging.WARNING, line: int = 1) -> logging.LogRecord:
    made = logging.LogRecord("x", level, "file.py", line, "slow %d", (7,), None)
    made.created = created
    return made


def test_human_line_has_time_level_logger_and_message() -> None:
    stream = configured()
    logging.getLogger("gateway.x").info("opened %s", "s1")
    line = stream.getvalue()
    assert line.endswith("INFO    gateway.x  opened s1\n")


def test_json_line_is_one_object_with_the_traceback_inside() -> None:
    stream = configured(format="json")
    try:
        raise ValueError("boom")
    except ValueError:
        logging.getLogger("gateway.x").exception("failed")
    (line,) = stream.getvalue().splitlines()
    entry = json.loads(line)
    assert (entry["level"], entry["logger"], entry["message"]) == ("error", "gateway.x", "failed")
    assert "ValueError: boom" in entry["traceback"]


def test_level_filters() -> None:
    stream = configured(level="error")
    logging.getLogger("gateway.x").warning("quiet")
    assert stream.getvalue() == ""


def test_warnings_of_one_place_are_held_back_after_the_burst() -> None:
    throttle = WarningThrottle(interval_s=10, burst=2)
    assert [throttle.filter(record(created=t)) for t in (0, 1, 2, 3)] == [True, True, False, False]
    later = record(created=10.5)
    assert throttle.filter(later)
    assert later.getMessage() == "slow 7 [2 similar held back]"


def test_other_places_and_errors_are_not_held_back() -> None:
    throttle = WarningThrottle(interval_s=10, burst=1)
    assert throttle.filter(record(created=0))
    assert not throttle.filter(record(created=0))
    assert throttle.filter(record(created=0, line=2))
    assert all(throttle.filter(record(created=0, level=logging.ERROR)) for _ in range(3))


def test_throttle_remembers_a_bounded_number_of_places() -> None:
    throttle = WarningThrottle()
    for line in range(1000):
        assert throttle.filter(record(created=0, line=line))
    assert len(throttle._sites) <= 256


def test_malformed_requests_do_not_reach_the_log() -> None:
    stream = configured()
    try:
        raise BadHttpMessage("Authorization: Bearer sesame")
    except BadHttpMessage:
        logging.getLogger("aiohttp.server").exception("Error handling request")
    assert stream.getvalue() == ""
