"""What a finished run says about itself: counts that must add up, and latencies."""

from __future__ import annotations

from rich.console import Console
from rich.table import Table
from rich.text import Text

from gateway.client.statistics import StreamStatistics


def print_report(
    console: Console, statistics: StreamStatistics, seconds: float, title: str
) -> None:
    """Print the receipts of a stream that ran for ``seconds``: a title and a table.

    Latencies run from the capture of a frame to the arrival of its result.
    """
    # Not the table's own title, which is wrapped and padded to the table's width.
    console.print(Text(title, style="italic"), soft_wrap=True)
    table = Table("", "", show_header=False)
    table.columns[1].justify = "right"
    for name, value in _rows(statistics, seconds):
        table.add_row(name, value)
    adds_up = statistics.receipts_add_up
    verdict = "[green]yes[/green]" if adds_up else "[bold red]no[/bold red]"
    table.add_row("receipts add up", verdict)
    console.print(table)


def _rows(statistics: StreamStatistics, seconds: float) -> list[tuple[str, str]]:
    rows = [("sent", str(statistics.sent)), ("results", str(statistics.results))]
    drops = sorted(statistics.dropped.items())
    rows += [(f"dropped: {reason}", str(count)) for reason, count in drops] or [("dropped", "0")]
    rows.append(("dropped at capture", str(statistics.dropped_at_capture)))
    rows.append(("errors", str(statistics.errors)))
    # Rare enough to be told only when they happen.
    rare = {
        "cancelled": statistics.cancelled,
        "refused": statistics.refused,
        "in flight": statistics.in_flight,
        "unanswered": statistics.unanswered,
    }
    rows += [(name, str(count)) for name, count in rare.items() if count]
    rate = statistics.results / seconds if seconds > 0 else 0.0
    rows.append(("fps", f"{rate:.1f}"))
    for percent in (50, 95, 99):
        latency_s = statistics.latencies_s.percentile(percent)
        rows.append((f"latency p{percent}", milliseconds(latency_s)))
    return rows


def milliseconds(value_s: float | None) -> str:
    """``12.3 ms``, or ``none`` when there is nothing to measure."""
    return "none" if value_s is None else f"{value_s * 1000:.1f} ms"
