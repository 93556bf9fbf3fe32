"""``clawstream top``: a live table of what a running gateway does."""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Annotated

import typer
from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.table import Table
from rich.text import Text

from gateway.commands.ask_gateway import DEFAULT_URL, ApiKey, Url
from gateway.commands.scrape import Change, Scrape, scrape

_NOTHING = "·"
_HOPS = ("queue", "batch", "prepare", "run", "interpret", "order")


def top(
    url: Url = DEFAULT_URL,
    api_key: ApiKey = None,
    interval_s: Annotated[
        float, typer.Option("--interval", min=0.2, max=60.0, help="Seconds between two looks.")
    ] = 1.0,
    once: Annotated[
        bool, typer.Option("--once", help="Print one table, of one interval, and end.")
    ] = False,
) -> None:
    """Watch a running gateway: rates, ages, queues, drops, memory; per model, live.

    All figures are of the last interval. Where frames spend their time is told by the columns
    from left to right: they queue, then run in a batch, then leave. Ctrl-C ends it.

    [bold]Examples[/bold]

      clawstream top
      clawstream top --url http://10.0.0.5:8400 --interval 5
      clawstream top --once
    """
    console = Console()
    before = scrape(url, api_key)
    if once:
        time.sleep(interval_s)
        console.print(view(Change(before=before, after=scrape(url, api_key)), url))
        return
    with Live(Text(f"looking at {url} …"), console=console, screen=console.is_terminal) as live:
        while True:
            time.sleep(interval_s)
            after = scrape(url, api_key)
            live.update(view(Change(before=before, after=after), url))
            before = after


def view(change: Change, url: str) -> RenderableType:
    """Everything on one screen."""
    parts: list[RenderableType] = [_headline(change, url)]
    text_models = change.after.label_values("model", "clawstream_llm_running")
    all_models = change.after.label_values("model", "clawstream_model_ready")
    frame_models = [model for model in all_models if model not in text_models]
    if frame_models:
        parts.append(_frames(change, frame_models))
        hops = _hops(change, frame_models)
        if hops.row_count:
            parts.append(hops)
    if text_models:
        parts.append(_text(change, text_models))
    drops = _drops(change)
    if drops.row_count:
        parts.append(drops)
    return Group(*parts)


def _headline(change: Change, url: str) -> Text:
    now = change.after
    lag_s = now.value("clawstream_loop_lag_seconds", statistic="max")
    facts = [
        f"{now.value('clawstream_connections'):.0f} connections",
        f"{now.value('clawstream_streams'):.0f} streams",
        f"loop lag max {_duration(lag_s)}",
        f"outboxes {_megabytes(now.value('clawstream_outbox_bytes'))} MB",
        f"gateway {_megabytes(now.value('process_resident_memory_bytes'))} MB",
        f"cpu {change.rate('process_cpu_seconds_total') * 100:.0f} %",
    ]
    return Text.assemble((f"clawstream at {url}", "bold"), "\n", " · ".join(facts), "\n")


def _frames(change: Change, models: Sequence[str]) -> Table:
    columns = ("model", "up", "in/s", "out/s", "queue", "batch", "run", "age p50", "p95", "p99")
    table = _table("frames and tensors", (*columns, "drop/s", "err/s", "MB"))
    now = change.after
    for model in models:
        batches = change.rate("clawstream_batches_total", model=model)
        results = change.rate("clawstream_item_results_total", model=model)
        age = "clawstream_frame_latency_seconds"
        table.add_row(
            _model_name(now, model),
            _workers(now, model),
            f"{change.rate('clawstream_items_accepted_total', model=model):.1f}",
            f"{results:.1f}",
            f"{now.value('clawstream_items_queued', model=model):.0f}",
            f"{results / batches:.1f}" if batches else _NOTHING,
            _duration(now.value("clawstream_predicted_run_seconds", model=model)),
            *(_quantile(change, age, share, model) for share in (0.5, 0.95, 0.99)),
            f"{change.rate('clawstream_items_dropped_total', model=model):.1f}",
            f"{change.rate('clawstream_items_failed_total', model=model):.1f}",
            _megabytes(now.value("clawstream_worker_rss_bytes", model=model)),
        )
    return table


def _hops(change: Change, models: Sequence[str]) -> Table:
    """Mean time of a result in each hop, and how busy the workers were; the longest hop stands
    out."""
    table = _table("where the time goes", ("model", *_HOPS, "oldest", "busy", "cpu"))
    name = "clawstream_hop_seconds"
    for model in models:
        means = [_mean(change, name, model=model, hop=hop) for hop in _HOPS]
        if not any(means):
            continue
        workers = change.after.value("clawstream_workers_alive", model=model) or 1.0
        busy = change.rate("clawstream_batch_run_seconds_total", model=model) / workers
        texts = [_NOTHING if mean is None else _duration(mean) for mean in means]
        longest = max(range(len(means)), key=lambda index: means[index] or 0.0)
        texts[longest] = f"[bold]{texts[longest]}[/bold]"
        table.add_row(
            model,
            *texts,
            _duration(change.after.value("clawstream_queue_age_seconds", model=model)),
            f"{busy:.0%}",
            f"{change.rate('clawstream_worker_cpu_seconds_total', model=model):.0%}",
        )
    return table


def _mean(change: Change, name: str, **labels: str) -> float | None:
    """Of a histogram, over the interval; None when nothing was counted."""
    count = change.rate(f"{name}_count", **labels)
    return change.rate(f"{name}_sum", **labels) / count if count > 0 else None


def _text(change: Change, models: Sequence[str]) -> Table:
    columns = ("model", "up", "run", "wait", "tok/s", "batch", "cache", "first p50", "p95")
    table = _table("prompts and tokens", (*columns, "gap p50", "p95", "MB"))
    now = change.after
    for model in models:
        first, gap = "clawstream_text_first_token_seconds", "clawstream_text_gap_seconds"
        table.add_row(
            _model_name(now, model),
            _workers(now, model),
            f"{now.value('clawstream_llm_running', model=model):.0f}",
            f"{now.value('clawstream_llm_waiting', model=model):.0f}",
            f"{change.rate('clawstream_llm_tokens_total', model=model):.0f}",
            f"{now.value('batch_size_avg', model=model):.1f}",
            f"{now.value('kv_cache_utilization', model=model):.0%}",
            *(
                _quantile(change, name, share, model)
                for name in (first, gap)
                for share in (0.5, 0.95)
            ),
            _megabytes(now.value("clawstream_worker_rss_bytes", model=model)),
        )
    return table


def _drops(change: Change) -> Table:
    """What is given up, and why; only what happened in the interval."""
    table = _table("given up", ("model", "what", "reason", "per second"))
    for what in ("frames", "prompts"):
        name = f"clawstream_{what}_dropped_total"
        for labels, _ in change.after.select(name):
            rate = change.rate(name, **labels)
            if rate > 0:
                table.add_row(labels["model"], what, labels["reason"], f"{rate:.1f}")
    return table


def _table(title: str, columns: Sequence[str]) -> Table:
    """Narrow enough for 80 columns with a dozen numbers."""
    table = Table(title=title, box=None, padding=(0, 1, 0, 0), collapse_padding=True)
    table.title_justify, table.title_style = "left", "bold"
    for index, column in enumerate(columns):
        if index == 0:
            table.add_column(column, overflow="fold")
        else:
            table.add_column(column, justify="right", no_wrap=True)
    return table


def _model_name(now: Scrape, model: str) -> str:
    is_ready = now.value("clawstream_model_ready", model=model) > 0
    return model if is_ready else f"[red]{model} (not ready)[/red]"


def _workers(now: Scrape, model: str) -> str:
    alive = now.value("clawstream_workers_alive", model=model)
    return f"{alive:.0f}/{now.value('clawstream_workers_wanted', model=model):.0f}"


def _quantile(change: Change, name: str, share: float, model: str) -> str:
    value_s = change.quantile(name, share, model=model)
    return _NOTHING if value_s is None else _duration(value_s)


def _duration(value_s: float) -> str:
    """``8.1ms``, ``120ms``, ``2.5s``: three digits at most."""
    if value_s >= 1.0:
        return f"{value_s:.1f}s"
    return f"{value_s * 1e3:.1f}ms" if value_s < 0.1 else f"{value_s * 1e3:.0f}ms"


def _megabytes(size_bytes: float) -> str:
    return f"{size_bytes / 1e6:.0f}"
