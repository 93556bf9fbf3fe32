"""How late timers fire in a bench's own process: below that its other figures say nothing."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress

from loadtest import machine

PERIOD_S = 0.02


class TimerError:
    """How far timers missed their absolute deadlines, early or late; uvloop's count in whole
    milliseconds."""

    def __init__(self) -> None:
        self._errors_ms: list[float] = []

    @property
    def p50_ms(self) -> float:
        return self._share_ms(0.5)

    @property
    def p99_ms(self) -> float:
        return self._share_ms(0.99)

    def __str__(self) -> str:
        largest_ms = max(self._errors_ms, default=float("nan"))
        return f"{self.p50_ms:.2f} ms, 99 % {self.p99_ms:.2f}, largest {largest_ms:.2f}"

    async def watch(self) -> None:
        """Until cancelled; as often as an answer has a token."""
        due_at = time.monotonic()  # the loop's own clock stands still during a turn
        while True:
            due_at = max(due_at + PERIOD_S, time.monotonic())
            await asyncio.sleep(max(0.0, due_at - time.monotonic()))
            self._errors_ms.append(1e3 * abs(time.monotonic() - due_at))

    def _share_ms(self, share: float) -> float:
        return machine.percentile(self._errors_ms, share) if self._errors_ms else float("nan")


@asynccontextmanager
async def watched_timers() -> AsyncIterator[TimerError]:
    """Watch the loop's timers meanwhile."""
    error = TimerError()
    watching = asyncio.create_task(error.watch(), name="timer error")
    try:
        yield error
    finally:
        watching.cancel()
        with suppress(asyncio.CancelledError):
            await watching
