"""An event loop whose clock jumps: timers cost no time, and their order and instants are exact.

@virtual_time
async def test_something() -> None:
    await run_until(5.0)
"""

from __future__ import annotations

import asyncio
import functools
import selectors
from collections.abc import Callable, Coroutine, Mapping
from typing import Any, ParamSpec

P = ParamSpec("P")


class _NeverWaits(selectors.BaseSelector):
    """Instead of waiting for ``timeout`` seconds, moves the loop's clock on by them."""

    def __init__(self) -> None:
        self.now = 0.0
        self._inner = selectors.DefaultSelector()

    def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
        ready = self._inner.select(0)
        if not ready:
            if timeout is None:
                raise RuntimeError("deadlock: nothing is ready and no timer is set")
            self.now += max(timeout, 0.0)
        return ready

    def register(self, fileobj: Any, events: int, data: Any = None) -> selectors.SelectorKey:
        return self._inner.register(fileobj, events, data)

    def unregister(self, fileobj: Any) -> selectors.SelectorKey:
        return self._inner.unregister(fileobj)

    def modify(self, fileobj: Any, events: int, data: Any = None) -> selectors.SelectorKey:
        return self._inner.modify(fileobj, events, data)

    def get_map(self) -> Mapping[Any, selectors.SelectorKey]:
        return self._inner.get_map()

    def close(self) -> None:
        self._inner.close()


class VirtualTimeLoop(asyncio.SelectorEventLoop):
    """Starts at time 0. Threads and sockets cannot wake it from a wait: it does not wait."""

    def __init__(self) -> None:
        self._clock = _NeverWaits()
        super().__init__(self._clock)

    def time(self) -> float:
        return self._clock.now

    def stand_still(self, seconds: float) -> None:
        """Let time pass in which nothing runs, as when a process is suspended."""
        self._clock.now += seconds


def virtual_time(test: Callable[P, Coroutine[Any, Any, None]]) -> Callable[P, None]:
    """Decorate an async test to run on its own ``VirtualTimeLoop``."""

    @functools.wraps(test)
    def run(*args: P.args, **kwargs: P.kwargs) -> None:
        with asyncio.Runner(loop_factory=VirtualTimeLoop) as runner:
            runner.run(test(*args, **kwargs))

    return run


async def run_until(when: float) -> None:
    """Return once everything due at ``when`` (loop time) has happened."""
    loop = asyncio.get_running_loop()
    reached = loop.create_future()
    loop.call_at(when, reached.set_result, None)
    await reached
    await settle()


async def settle() -> None:
    """Let everything happen that is ready now, and what follows from it (a few turns deep)."""
    for _ in range(10):
        await asyncio.sleep(0)
