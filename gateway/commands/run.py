"""One stream through a gateway with the real client, counted: shared by ``stream`` and ``demo``."""

from __future__ import annotations

import asyncio
import signal
import time
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn

from gateway.client import FrameResult, Source, StreamStatistics, connect, open_source
from gateway.commands.meter import ResultMeter
from gateway.commands.report import RunReport
from gateway.commands.video import AnnotatedVideo

_REFRESH_S = 0.25

OnResult = Callable[[FrameResult], None]
OnEvent = Callable[[Any], None]


@dataclass(frozen=True, slots=True, kw_only=True)
class RunOptions:
    """What to stream and how. ``seconds`` ends an endless source; ``out`` asks for annotated
    frames and writes them to an MP4 file."""

    url: str
    source: str
    model: str
    policy: str = "latest"
    deadline_ms: float | None = None
    fps: float | None = None
    loop: bool = False
    seconds: float | None = None
    out: Path | None = None
    api_key: str | None = None


class Run:
    """Drives one stream to its end. Ctrl-C stops the source and waits for the receipts; a second
    one gives those up."""

    def __init__(
        self, options: RunOptions, *, on_result: OnResult | None = None, on_event: OnEvent | None = None
    ) -> None:
        self._options = options
        self._on_result = on_result
        self._on_event = on_event
        self._meter = ResultMeter()
        self._started = 0.0
        self.interrupted = False
        self.num_written = 0  # frames in ``out``
