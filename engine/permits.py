"""A bounded number of permits that threads and coroutines may wait for alike."""

from __future__ import annotations

import asyncio
import threading
from collections import deque
from concurrent.futures import Future


class Permits:
    """``count`` permits, handed out in the order of asking; any thread.

    Those who wait are the callers themselves, so the queue is as long as their number.
    """

    def __init__(self, count: int) -> None:
        self._free = count
        self._lock = threading.Lock()
        self._waiting: deque[Future[None]] = deque()

    def try_take(self) -> bool:
        """Take a permit if one is free."""
        with self._lock:
            if self._free == 0:
                return False
            self._free -= 1
            return True

    def wait_take(self) -> None:
        """Block until a permit is taken; interrupted, it leaves nothing behind."""
        turn = self._ask()
        try:
            turn.result()
        except BaseException:
            self._withdraw(turn)
            raise

    async def wait_take_async(self) -> None:
        """Wait until a permit is taken; cancelled, it leaves nothing behind."""
        turn = self._ask()
        try:
            await asyncio.wrap_future(turn)
        except BaseException:
            self._withdraw(turn)
            raise

    def release(self) -> None:
        """Give one permit to who waits longest, or back."""
        with self._lock:
            while self._waiting:
                turn = self._waiting.popleft()
                if turn.set_running_or_notify_cancel():
                    break
            else:
                self._free += 1
                return
        turn.set_result(None)

    def _ask(self) -> Future[None]:
        turn: Future[None] = Future()
        with self._lock:
            if self._free == 0:
                self._waiting.append(turn)
                return turn
            self._free -= 1
        turn.set_result(None)
        return turn

    def _withdraw(self, turn: Future[None]) -> None:
        if not turn.cancel():
            self.release()  # it was granted in the same moment
