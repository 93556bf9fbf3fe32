"""One stream through a gateway with the real client: shared by ``stream`` and ``demo``."""

from __future__ import annotations

import asyncio
import signal
import time
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager, nullcontext
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn

from gateway.client import (
    Client,
    Event,
    FrameResult,
    FrameStream,
    StreamStatistics,
    connect,
    open_source,
)
from gateway.client.sources import StoppableSource
from gateway.commands.client_errors import readable_client_errors
from gateway.commands.exits import CommandError
from gateway.commands.meter import ResultMeter
from gateway.commands.out_file import check_not_source
from gateway.commands.video import AnnotatedVideo

_REFRESH_S = 0.25
_RECONNECT_S = 60.0  # a gateway that restarts loads its models first
_PICTURES_HZ = 25.0  # in a video of pictures, which have no times of their own


@dataclass(frozen=True, slots=True, kw_only=True)
class RunOptions:
    """What to stream and how. Without a ``policy`` it is lossless for pictures, latest for what
    comes at its own pace. With ``pace`` ``playout`` results come evenly. ``seconds`` ends a source
    that does not end by itself; ``out`` asks for annotated frames and writes them to an MP4 file.
    """

    url: str
    source: str
    model: str
    policy: str | None = None
    deadline_ms: float | None = None
    fps: float | None = None
    pace: str | None = None
    loop: bool = False
    seconds: float | None = None
    out: Path | None = None
    api_key: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Listeners:
    """Told what happens, on the event loop; they must return at once."""

    on_result: Callable[[FrameResult], None] | None = None
    on_event: Callable[[Event], None] | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class RunOutcome:
    """How a run under ``policy`` ended; ``num_written`` counts the frames in ``out``.

    ``failure`` is why the connection or the stream ended before its source did.
    """

    statistics: StreamStatistics
    policy: str
    seconds: float
    interrupted: bool
    num_written: int
    failure: CommandError | None


@dataclass(slots=True)
class _Stop:
    """Whether Ctrl-C ended the run."""

    interrupted: bool = False


async def run_stream(options: RunOptions, console: Console, listeners: Listeners) -> RunOutcome:
    """Stream to the end of the source and wait for every receipt.

    Ctrl-C stops the source and still waits for the receipts; a second one gives those up. While
    it runs, a terminal shows rate and latency on ``console``.

    Raises:
        CommandError: no such source, or it is ``out``; no connection, or nothing could be sent.
    """
    check_not_source(options.out, options.source)
    with readable_client_errors(options.url, options.model):
        source = open_source(
            options.source,
            fps=options.fps,
            loop=options.loop,
            # Nothing is lost, so nothing is gained by playing a clip at its own pace.
            realtime=options.policy != "lossless",
        )
        client = connect(
            options.url,
            api_key=options.api_key,
            give_up_after_s=_RECONNECT_S,
            on_event=partial(_on_event, console, listeners),
        )
        async with client:
            return await _follow(client, source, options, console, listeners)


def _stream(client: Client, source: StoppableSource, options: RunOptions) -> FrameStream:
    return client.stream_frames(
        source,
        model=options.model,
        policy=_policy(options, source),
        deadline_ms=options.deadline_ms,
        pace=options.pace,
        annotate=None if options.out is None else "boxes",
    )


async def _follow(
    client: Client,
    source: StoppableSource,
    options: RunOptions,
    console: Console,
    listeners: Listeners,
) -> RunOutcome:
    """Take every result; the video is written between two results, in a thread."""
    stream = _stream(client, source, options)
    readable = partial(
        readable_client_errors, options.url, options.model, served=lambda: client.models
    )
    meter = ResultMeter()
    num_written = 0
    failure = None
    started = time.monotonic()
    with (
        _stopping(source, options.seconds) as stop,
        AnnotatedVideo(options.out) if options.out is not None else nullcontext() as video,
    ):
        try:
            with readable():
                async with _watched(console, meter, stream.statistics, options.seconds):
                    async for result in stream:
                        meter.add(time.monotonic(), result.latency_s)
                        if listeners.on_result is not None:
                            listeners.on_result(result)
                        if video is not None and result.annotated is not None:
                            at_s = _shown_at_s(result)
                            await asyncio.to_thread(video.add, result.annotated, at_s)
                            num_written = video.num_frames
        except CommandError as error:
            if stream.statistics.sent == 0:
                raise
            failure = error  # what was sent has receipts that are worth a look
    return RunOutcome(
        statistics=stream.statistics,
        policy=_policy(options, source),
        seconds=time.monotonic() - started,
        interrupted=stop.interrupted,
        num_written=num_written,
        failure=failure,
    )


def _policy(options: RunOptions, source: StoppableSource) -> str:
    return options.policy or ("latest" if source.is_live else "lossless")


def _shown_at_s(result: FrameResult) -> float:
    """When the video shows the frame: as in the clip; pictures one after the other."""
    if result.media_time_s is not None:
        return result.media_time_s
    return result.seq / _PICTURES_HZ


def _on_event(console: Console, listeners: Listeners, event: Event) -> None:
    if listeners.on_event is not None:
        listeners.on_event(event)
    if event.name == "disconnected":
        text = f"disconnected: {event.detail}; trying again for {_RECONNECT_S:.0f} s"
        console.print(text, highlight=False, soft_wrap=True)
    elif event.name == "reconnected":
        console.print("connected again", highlight=False)
    elif event.name == "service_level":
        console.print(f"the gateway's service level is {event.detail}", highlight=False)


@contextmanager
def _stopping(source: StoppableSource, seconds: float | None) -> Iterator[_Stop]:
    """Stop the source after ``seconds`` or at Ctrl-C; a second Ctrl-C ends everything."""
    loop = asyncio.get_running_loop()
    stop = _Stop()

    def interrupt() -> None:
        if stop.interrupted:
            raise KeyboardInterrupt
        stop.interrupted = True
        source.stop()

    loop.add_signal_handler(signal.SIGINT, interrupt)
    timer = None if seconds is None else loop.call_later(seconds, source.stop)
    try:
        yield stop
    finally:
        loop.remove_signal_handler(signal.SIGINT)
        if timer is not None:
            timer.cancel()


@asynccontextmanager
async def _watched(
    console: Console, meter: ResultMeter, statistics: StreamStatistics, seconds: float | None
) -> AsyncIterator[None]:
    """Show a live line while the body runs, if ``console`` is a terminal."""
    if not console.is_terminal:
        yield
        return
    columns = (BarColumn(), TimeElapsedColumn(), TextColumn("{task.description}"))
    with Progress(*columns, console=console, transient=True, auto_refresh=False) as progress:
        task = asyncio.create_task(_watch(progress, meter, statistics, seconds), name="live line")
        try:
            yield
        finally:
            task.cancel()
            await asyncio.wait({task})


async def _watch(
    progress: Progress, meter: ResultMeter, statistics: StreamStatistics, seconds: float | None
) -> None:
    started = time.monotonic()
    line = progress.add_task("", total=seconds)
    while True:
        now = time.monotonic()
        dropped = sum(statistics.dropped.values()) + statistics.dropped_at_capture
        status = f"{meter.status(now)}, {statistics.results} results, {dropped} dropped"
        progress.update(line, completed=now - started, description=status, refresh=True)
        await asyncio.sleep(_REFRESH_S)
