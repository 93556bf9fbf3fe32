"""The thread behind a library model: an event loop that runs the engine, and the door to it."""

from __future__ import annotations

import asyncio
import itertools
import threading
from collections.abc import Callable
from concurrent.futures import Future, InvalidStateError
from typing import Any

from engine.base import Lane, ModelStatistics
from engine.config import ModelConfig
from engine.errors import EngineError, Overloaded, Unavailable
from engine.manifest import Manifest
from engine.permits import Permits
from engine.types import Failed, Item, LaneSpec, Outcome, Policy, Progress, Result
from engine.vision import VisionEngine

CLOSE_BUDGET_S = 5.0
CLOSE_SLACK_S = 10.0  # beyond it for terminating, killing and reaping

Decode = Callable[[Result], Any]


class _Request:
    """An unanswered item: who waits for it, and how its result becomes an answer."""

    __slots__ = ("decode", "future", "item")

    def __init__(self, item: Item, decode: Decode) -> None:
        self.item = item
        self.decode = decode
        self.future: Future[Any] = Future()

    def settle(self, outcome: Outcome) -> None:
        """Resolve the future; the caller may cancel it at the same moment, and then that counts."""
        try:
            if not self.future.set_running_or_notify_cancel():
                return
            if isinstance(outcome, Result):
                self.future.set_result(self.decode(outcome))
            else:
                self.future.set_exception(_error(outcome))
        except InvalidStateError:
            pass  # cancelled, and told so, before
        except Exception as error:  # noqa: BLE001 - from decode: whoever waits must hear of it
            self.future.set_exception(error)


class EngineThread:
    """Runs one model's engine on a daemon thread; every method may be called from any thread.

    At most ``max_concurrent_requests`` items are unanswered: a permit is taken for each before
    ``offer`` and returned when its future is done. Every future is resolved, whatever happens.
    """

    def __init__(
        self, manifest: Manifest, config: ModelConfig, loop: asyncio.AbstractEventLoop
    ) -> None:
        self._loop = loop
        self._manifest = manifest
        self._config = config
        self._permits = Permits(config.max_concurrent_requests)
        self._requests: dict[int, _Request] = {}
        self._ids = itertools.count(1)
        self._lock = threading.Lock()  # guards _requests and _is_closed
        self._is_closed = False
        self._lane: Lane | None = None
        self._engine: VisionEngine | None = None
        self._main: asyncio.Task[None] | None = None
        name = f"clawstream-{manifest.name}"
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)
        self._started: Future[None] = Future()

    @classmethod
    def start(cls, manifest: Manifest, config: ModelConfig) -> EngineThread:
        """Start thread and workers; blocks until they are ready, raises what their start raises."""
        self = cls(manifest, config, asyncio.new_event_loop())
        self._thread.start()
        try:
            self._started.result()
        except BaseException:  # KeyboardInterrupt too
            self.close()
            raise
        return self

    def wait_permit(self) -> None:
        """Wait for room for one more item; ``Overloaded`` where waiting would never end."""
        if threading.current_thread() is not self._thread:
            self._permits.wait_take()
        elif not self._permits.try_take():
            raise Overloaded("too many unanswered items to submit another from a callback")

    async def wait_permit_async(self) -> None:
        """``wait_permit`` for coroutines."""
        await self._permits.wait_take_async()

    def offer(self, payload: bytes, meta: bytes, decode: Decode) -> Future[Any]:
        """Hand an item over; its future gets the decoded result or an ``EngineError``.

        A permit was taken. Raises ``Unavailable`` (and returns the permit) when closed.
        """
        request = _Request(Item(id=next(self._ids), payload=payload, meta=meta), decode)
        try:
            with self._lock:
                self._call_soon(self._offer, request)
                self._requests[request.item.id] = request
        except BaseException:
            self._permits.release()
            raise
        request.future.add_done_callback(lambda future: self._note_done(request))
        return request.future

    def statistics(self) -> ModelStatistics:
        """Read on the engine's thread, where the numbers are consistent."""
        answer: Future[ModelStatistics] = Future()
        with self._lock:
            self._call_soon(self._read_statistics, answer)
        return answer.result(timeout=CLOSE_BUDGET_S)

    def close(self) -> None:
        """Stop the engine; returns when its processes are gone. Idempotent.

        From the engine's own thread (a callback, the garbage collector) it only begins to stop.
        """
        with self._lock:
            if not self._is_closed:
                self._call_soon(self._cancel_main)
                self._is_closed = True
        if threading.current_thread() is not self._thread:
            self._thread.join(CLOSE_BUDGET_S + CLOSE_SLACK_S)

    def _call_soon(self, callback: Callable[..., None], *arguments: Any) -> None:
        """Run on the engine's thread; holds ``_lock``. Raises ``Unavailable`` when closed."""
        if self._is_closed:
            raise Unavailable("the model is closed")
        self._loop.call_soon_threadsafe(callback, *arguments)

    # on the engine's thread

    def _run(self) -> None:
        try:
            # Not asyncio.run: the loop stays open until _end has refused all further callers.
            asyncio.set_event_loop(self._loop)
            self._loop.run_until_complete(self._serve())
        except asyncio.CancelledError:
            pass  # close() asked for it
        except Exception as error:
            if self._started.done():
                raise
            self._started.set_exception(error)
        finally:
            self._end()

    async def _serve(self) -> None:
        with self._lock:
            if self._is_closed:
                return  # before it began
            self._main = asyncio.current_task()
        engine = VisionEngine({self._manifest.name: (self._manifest, self._config)})
        try:
            await engine.start()
            spec = LaneSpec(
                model=self._manifest.name,
                policy=Policy.FIFO,
                capacity=self._config.max_concurrent_requests,
            )
            self._lane = engine.open_lane(spec, self._emit)
            self._engine = engine
            self._started.set_result(None)
            await self._loop.create_future()  # until close() cancels
        finally:
            await engine.aclose(self._loop.time() + CLOSE_BUDGET_S)

    def _cancel_main(self) -> None:
        if self._main is not None:
            self._main.cancel()

    def _offer(self, request: _Request) -> None:
        if request.future.cancelled():
            return
        try:
            assert self._lane is not None
            self._lane.offer(request.item)
        except EngineError as error:
            request.settle(Failed(error))

    def _emit(self, item_id: int, outcome: Progress | Outcome) -> None:
        with self._lock:
            request = self._requests.get(item_id)
        if request is not None and not isinstance(outcome, Progress):
            request.settle(outcome)

    def _read_statistics(self, answer: Future[ModelStatistics]) -> None:
        assert self._engine is not None
        answer.set_result(self._engine.statistics().models[0])

    def _end(self) -> None:
        """The loop has stopped: answer what it can no longer answer."""
        with self._lock:
            self._is_closed = True
            left = list(self._requests.values())
        self._loop.run_until_complete(self._loop.shutdown_asyncgens())
        self._loop.close()
        for request in left:
            request.settle(Failed(Unavailable("the model was closed")))
        if not self._started.done():
            self._started.set_exception(Unavailable("closed while starting"))

    def _note_done(self, request: _Request) -> None:
        """A future is done, on whatever thread: forget it, and withdraw a cancelled item."""
        with self._lock:
            self._requests.pop(request.item.id, None)
            if request.future.cancelled() and not self._is_closed:
                self._call_soon(self._withdraw, request.item.id)
        self._permits.release()

    def _withdraw(self, item_id: int) -> None:
        if self._lane is not None:
            self._lane.cancel(item_id)


def _error(outcome: Outcome) -> EngineError:
    """Why there is no result, as an exception."""
    if isinstance(outcome, Failed):
        return outcome.error
    return Unavailable(f"the item was dropped: {getattr(outcome, 'reason', 'cancelled')}")
