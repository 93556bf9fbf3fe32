"""A worker's lines differ from its host's in one thing: they name the worker."""

from __future__ import annotations

import io
import json
import logging
import re
from collections.abc import Iterator

import pytest

from engine.log_format import LogFormat, format_in_use, make_formatter
from engine.workers.lifeline import configure_logging

pytestmark = pytest.mark.unit


@pytest.fixture
def root() -> Iterator[logging.Logger]:
    """The root logger without handlers."""
    root = logging.getLogger()
    handlers, level = root.handlers[:], root.level
    root.handlers[:] = []
    yield root
    root.handlers[:], root.level = handlers, level


def line(log_format: LogFormat, worker: str = "") -> str:
    record = logging.LogRecord("engine.x", logging.INFO, "x.py", 1, "%d done", (7,), None)
    return make_formatter(log_format, worker).format(record)


def test_human_lines_of_host_and_worker_have_one_layout() -> None:
    clock = r"\d\d:\d\d:\d\d\.\d{3} INFO    engine\.x  "
    assert re.fullmatch(clock + "7 done", line("human"))
    assert re.fullmatch(
        clock + r"\[worker faces/0 pid 71\] 7 done", line("human", "faces/0 pid 71")
    )


def test_json_lines_of_host_and_worker_have_one_layout() -> None:
    host, worker = json.loads(line("json")), json.loads(line("json", "faces/0 pid 71"))
    assert worker.pop("worker") == "faces/0 pid 71"
    assert host.keys() == worker.keys()
    assert isinstance(worker["time"], float)


@pytest.mark.parametrize("log_format", ["human", "json"])
def test_format_in_use_is_that_of_the_root_logger(
    root: logging.Logger, log_format: LogFormat
) -> None:
    handler = logging.StreamHandler(io.StringIO())
    handler.setFormatter(make_formatter(log_format))
    root.addHandler(handler)
    assert format_in_use() == log_format


def test_a_program_that_does_not_configure_logging_gets_human_lines(root: logging.Logger) -> None:
    assert format_in_use() == "human"


def test_a_worker_logs_in_the_format_it_is_told(
    root: logging.Logger, capsys: pytest.CaptureFixture[str]
) -> None:
    configure_logging("faces", 2, logging.INFO, "json")
    logging.getLogger("engine.x").info("ready")
    logging.getLogger("engine.x").debug("not at this level")
    (written,) = capsys.readouterr().err.splitlines()
    assert json.loads(written)["worker"].startswith("faces/2 pid ")
