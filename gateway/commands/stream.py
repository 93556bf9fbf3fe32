"""``clawstream stream``: a camera, a clip or a network stream into a running gateway."""

from __future__ import annotations

import asyncio
import sys
from enum import Enum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import msgspec
import typer
from rich.console import Console

from gateway.commands.ask_gateway import DEFAULT_URL, ApiKey, Url
from gateway.commands.exits import CommandError, ExitCode, print_error
from gateway.commands.out_file import check_video_file

if TYPE_CHECKING:
    from gateway.client import Event, FrameResult
    from gateway.commands.run import RunOptions, RunOutcome


class Policy(Enum):
    """What happens to a frame that finds no room."""

    LATEST = "latest"
    FIFO = "fifo"
    LOSSLESS = "lossless"


class Pace(Enum):
    """When results leave the gateway."""

    OFF = "off"
    PLAYOUT = "playout"


def stream(
    source: Annotated[
        str,
        typer.Argument(
            help="A video file, a camera's number, an rtsp:// address, a picture or a folder of "
            "pictures."
        ),
    ],
    model: Annotated[str, typer.Option(help="A model that the gateway serves.")],
    url: Url = DEFAULT_URL,
    api_key: ApiKey = None,
    policy: Annotated[
        Policy | None,
        typer.Option(
            help="latest: new frames replace old ones. fifo: in order, the newest gives way. "
            "lossless: every frame, as fast as it is answered. Default: latest, for pictures "
            "without --fps lossless."
        ),
    ] = None,
    deadline_ms: Annotated[
        float | None, typer.Option(min=1.0, help="Give a frame up at this age.")
    ] = None,
    fps: Annotated[
        float | None, typer.Option(min=0.01, max=1000.0, help="Send at most this many a second.")
    ] = None,
    pace: Annotated[
        Pace | None,
        typer.Option(
            help="off: results come at once. playout: they are held a little, so that they come "
            "as evenly as the frames were taken; not with --policy lossless. Default: off."
        ),
    ] = None,
    json: Annotated[
        bool, typer.Option("--json", help="One JSON object per result on standard output.")
    ] = False,
    verbose: Annotated[
        bool, typer.Option("--verbose", "-v", help="With --json: drops and errors, too.")
    ] = False,
    out: Annotated[
        Path | None,
        typer.Option(
            callback=check_video_file,
            help="Write annotated frames to this MP4 file: all with --policy lossless, else "
            "at most 15 a second.",
        ),
    ] = None,
) -> None:
    """Send a camera, a clip or a network stream to a gateway and show what comes back.

    Shows rate, latency and drops while it runs, and the receipts at the end; with --json they go
    to standard error. Ctrl-C stops the source, waits for what is in flight, and ends with 130; a
    second one ends at once.

    [bold]Examples[/bold]

      clawstream stream 0 --model centerface
      clawstream stream clip.mp4 --model centerface --out annotated.mp4
      clawstream stream rtsp://camera/live --model centerface --deadline-ms 300
      clawstream stream 0 --model centerface --pace playout --json
      clawstream stream pictures/ --model centerface --json | jq .data
    """
    from gateway.commands.run import Listeners, RunOptions, run_stream

    if verbose and not json:
        raise CommandError(ExitCode.USAGE, "--verbose: only together with --json")
    options = RunOptions(
        url=url,
        source=source,
        model=model,
        policy=None if policy is None else policy.value,
        deadline_ms=deadline_ms,
        fps=fps,
        pace=None if pace is None else pace.value,
        out=out,
        api_key=api_key,
    )
    # Standard output is for results alone, so that it can be piped.
    console = Console(stderr=True) if json else Console()
    listeners = Listeners(
        on_result=_write_result if json else None, on_event=_write_event if verbose else None
    )
    outcome = asyncio.run(run_stream(options, console, listeners))
    finish(outcome, options, console)


def finish(outcome: RunOutcome, options: RunOptions, console: Console) -> None:
    """Show how the run ended, and end the command accordingly."""
    from gateway.commands.report import print_report

    title = f"{Path(options.source).name} -> {options.model}, {outcome.seconds:.1f} s"
    print_report(console, outcome.statistics, outcome.seconds, title)
    if outcome.num_written > 0:
        frames = "frame" if outcome.num_written == 1 else "frames"
        written = f"{outcome.num_written} annotated {frames} in {options.out}"
        console.print(written, highlight=False, soft_wrap=True)
    if outcome.failure is not None:
        if not outcome.interrupted:
            raise outcome.failure
        print_error(str(outcome.failure))
        raise typer.Exit(ExitCode.INTERRUPTED)
    problem = _problem(outcome, options)
    if problem is not None:
        raise CommandError(ExitCode.FAILED, problem)
    if outcome.interrupted:
        raise typer.Exit(ExitCode.INTERRUPTED)


def _problem(outcome: RunOutcome, options: RunOptions) -> str | None:
    """What was promised or asked for and did not happen, although the stream came to its end."""
    statistics = outcome.statistics
    if not statistics.receipts_add_up:
        return "the receipts do not add up"
    dropped = sum(statistics.dropped.values())
    if outcome.policy == Policy.LOSSLESS.value and options.deadline_ms is None and dropped > 0:
        return f"{dropped} of {statistics.sent} frames were dropped in spite of policy lossless"
    if options.out is not None and outcome.num_written == 0:
        return (
            f"{options.out} is not written: none of {statistics.results} results of model "
            f"{options.model!r} brought an annotated frame"
        )
    return None


def _write_result(result: FrameResult) -> None:
    line = {
        "event": "result",
        "seq": result.seq,
        "t_us": result.t_us,
        "latency_ms": round(result.latency_s * 1000, 3),
        "held_ms": result.timing.pace / 1000,  # of the latency; for an even playout
        "model": result.model,
        "version": result.version,
        "data": msgspec.Raw(result.raw_data),
    }
    _write_line(line)


def _write_event(event: Event) -> None:
    line = {"event": event.name, "seq": event.seq, "detail": event.detail}
    if event.name in ("drop", "error", "disconnected", "reconnected"):
        _write_line({key: value for key, value in line.items() if value is not None})


def _write_line(line: dict[str, object]) -> None:
    sys.stdout.write(msgspec.json.encode(line).decode() + "\n")
    sys.stdout.flush()  # a reader of the pipe sees a result when it comes
