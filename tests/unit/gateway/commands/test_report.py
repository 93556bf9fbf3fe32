from __future__ import annotations

from io import StringIO

import pytest
from rich.console import Console

from gateway.commands.report import RunReport, percentile, report_table

pytestmark = pytest.mark.unit


def _report(**changes: object) -> RunReport:
    values: dict[str, object] = {
        "seconds": 2.0,
        "sent": 50,
        "results": 40,
        "errors": 1,
        "cancelled": 2,
        "dropped_at_capture": 3,
        "receipts_add_up": True,
        "drops": {"superseded": 5, "deadline": 2},
        "latencies_s": (0.010, 0.020, 0.030),
    }
    return RunReport(**{**values, **changes})  # type: ignore[arg-type]


def _text(report: RunReport) -> list[list[str]]:
    written = StringIO()
    Console(width=80, file=written).print(report_table(report, "run"))
    cells = [line.strip("│").split("│") for line in written.getvalue().splitlines()]
    return [[cell.strip() for cell in row] for row in cells if len(row) == 2]


def test_table_has_every_count() -> None:
    assert _text(_report()) == [
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
    rows = _text(_report(seconds=0.0, results=0, drops={}, latencies_s=(), receipts_add_up=False))
    assert ["fps", "0.0"] in rows
    assert ["dropped", "0"] in rows
    assert ["latency p99", "none"] in rows
    assert ["receipts add up", "no"] in rows


@pytest.mark.parametrize(
    ("percent", "expected"), [(0, 1.0), (1, 1.0), (50, 50.0), (95, 95.0), (99, 99.0), (100, 100.0)]
)
def test_percentile_is_the_nearest_rank(percent: float, expected: float) -> None:
    values = [float(value) for value in range(100, 0, -1)]
    assert percentile(values, percent) == expected


def test_percentile_of_nothing_is_none() -> None:
    assert percentile([], 50) is None
    assert percentile([7.0], 99) == 7.0
