"""What a finished run says about itself: counts that must add up, and latencies."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from rich.table import Table


@dataclass(frozen=True, slots=True, kw_only=True)
class RunReport:
    """Counts of one stream, and the latency of each of its results, capture to receipt."""

    seconds: float
    sent: int
    results: int
    errors: int
    cancelled: int
    dropped_at_capture: int
    receipts_add_up: bool
    drops: Mapping[str, int] = field(default_factory=dict)  # by reason
    latencies_s: Sequence[float] = ()

    @property
    def fps(self) -> float:
        """Results per second."""
        return self.results / self.seconds if self.seconds > 0 else 0.0


def percentile(values: Sequence[float], percent: float) -> float | None:
    """Nearest rank: the smallest value that ``percent`` % of the values do not exceed."""
    if not values:
        return None
    rank = max(1, math.ceil(len(values) * percent / 100))
    return sorted(values)[rank - 1]


def report_table(report: RunReport, title: str) -> Table:
    """The report as a table of two columns."""
    table = Table("", "", title=title, show_header=False, title_justify="left")
    table.columns[1].justify = "right"
    table.add_row("sent", str(report.sent))
    table.add_row("results", str(report.results))
    for reason, count in sorted(report.drops.items()):
        table.add_row(f"dropped: {reason}", str(count))
    if not report.drops:
        table.add_row("dropped", "0")
    table.add_row("dropped at capture", str(report.dropped_at_capture))
    table.add_row("errors", str(report.errors))
    table.add_row("cancelled", str(report.cancelled))
    table.add_row("fps", f"{report.fps:.1f}")
    for percent in (50, 95, 99):
        table.add_row(f"latency p{percent}", milliseconds(percentile(report.latencies_s, percent)))
    verdict = "[green]yes[/green]" if report.receipts_add_up else "[bold red]no[/bold red]"
    table.add_row("receipts add up", verdict)
    return table


def milliseconds(value_s: float | None) -> str:
    """``12.3 ms``, or ``none`` when there is nothing to measure."""
    return "none" if value_s is None else f"{value_s * 1000:.1f} ms"
