from __future__ import annotations

from io import StringIO

import pytest
from rich.console import Console

from gateway.client.statistics import StreamStatistics
from gateway.commands.report import print_report

pytestmark = pytest.mark.unit


def _rows(statistics: StreamStatistics, seconds: float) -> list[list[str]]:
    written = StringIO()
    print_report(Console(width=80, file=written), statistics, seconds, "run")
    cells = [line.strip("│").split("│") for line in written.getvalue().splitlines()]
    return [[cell.strip() for cell in row] for row in cells if len(row) == 2]


def test_title_is_one_line_and_no_line_ends_with_blanks() -> None:
    written = StringIO()
    title = f"{'a_very_long_name_of_a_clip_' * 4}.mp4 -> centerface, 10.0 s"
    print_report(Console(width=80, file=written), StreamStatistics(), 10.0, title)
    lines = written.getvalue().splitlines()
    assert lines[0] == title
    assert all(line == line.rstrip() for line in lines)


def test_table_has_every_count() -> None:
    statistics = StreamStatistics(
        sent=50,
        results=40,
        dropped={"superseded": 5, "deadline": 2},
        dropped_at_capture=3,
        errors=1,
        cancelled=2,
    )
    for latency_s in (0.010, 0.020, 0.030):
        statistics.latencies_s.add(latency_s)
    assert _rows(statistics, seconds=2.0) == [
        ["sent", "50"],
        ["results", "40"],
        ["dropped: deadline", "2"],
        ["dropped: superseded", "5"],
        ["dropped at capture", "3"],
        ["errors", "1"],
        ["cancelled", "2"],
        ["fps", "20.0"],
        ["latency p50", "20.0 ms"],
        ["latency p95", "30.0 ms"],
        ["latency p99", "30.0 ms"],
        ["receipts add up", "yes"],
    ]


def test_run_without_results_has_no_latency() -> None:
    rows = _rows(StreamStatistics(), seconds=0.0)
    assert ["dropped", "0"] in rows
    assert ["fps", "0.0"] in rows
    assert ["latency p99", "none"] in rows


def test_missing_receipts_show() -> None:
    rows = _rows(StreamStatistics(sent=3, results=2, unanswered=1), seconds=1.0)
    assert ["unanswered", "1"] in rows
    assert ["receipts add up", "no"] in rows
