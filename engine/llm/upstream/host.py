"""An upstream server in the place of a worker: takes prompts, tells what comes back."""

from __future__ import annotations

import asyncio
import functools
import logging

import aiohttp

from engine.config import UpstreamConfig
from engine.errors import EngineError, InternalError
from engine.llm.host import HostEvents, HostStatistics
from engine.llm.messages import (
    CancelKeys,
    Down,
    LlmReady,
    Refused,
    ReleaseTable,
    Step,
    StepItem,
    Submit,
)
from engine.llm.upstream.body import build_request
from engine.llm.upstream.call import Call
from engine.llm.upstream.failures import Misconfigured
from engine.llm.upstream.meter import UpstreamMeter
from engine.llm.upstream.probe import Probe
from engine.llm.upstream.waiting import WaitingPrompts

logger = logging.getLogger(__name__)

_READY = LlmReady(
    device="upstream", weights="", num_blocks=0, block_size=0, max_seq_length=0, vocabulary=0
)
_GAUGE_INTERVAL_S = 1.0
_CLOSE_S = 1.0


class UpstreamHost:
    """Implements :class:`engine.llm.host.Host`; runs on the event loop's thread.

    Each running prompt is a task that owns a connection; at most ``max_concurrent_requests`` run,
    the others wait, no more than the door lets in. Parsing a chunk takes 4 µs of the loop.
    A server that is down makes the model not ready, and prompts are tried all the same: each is
    answered within its own time-outs, and the first success needs no timer to be noticed.
    """

    can_recover = True

    def __init__(self, name: str, config: UpstreamConfig, events: HostEvents) -> None:
        self._name = name
        self._config = config
        self._events = events
        self._probe = Probe(name, config)
        self._meter = UpstreamMeter()
        self._waiting = WaitingPrompts(config.max_waiting)
        self._running: dict[int, asyncio.Task[None]] = {}
        self._calls: dict[int, Call] = {}
        self._session: aiohttp.ClientSession | None = None
        self._background: list[asyncio.Task[None]] = []
        self._is_closed = False

    @property
    def can_send(self) -> bool:
        return self._session is not None and not self._is_closed

    def send(self, message: Down) -> None:
        match message:
            case Submit():
                self._waiting.add(message, asyncio.get_running_loop().time())
                self._fill()
            case CancelKeys(keys=keys):
                for key in keys:
                    self._cancel(key)
            case ReleaseTable(releases=releases):
                for release in releases:
                    if release.key in self._calls:
                        self._calls[release.key].note_release(release.released)

    def note_busy(self) -> None:
        """Each call watches its own silence."""

    def statistics(self) -> HostStatistics:
        reason = "closed" if self._is_closed else self._probe.reason
        return HostStatistics(ready=not reason, reason=reason, restarts=0)

    # --- life

    async def start(self) -> None:
        """Returns when the server answers; raises ``StartupError``."""
        self._session = _open_session(self._config)
        await self._probe.wait_until_up(self._session)
        self._background = [
            asyncio.create_task(self._probe.watch(self._session), name=f"probe-{self._name}"),
            asyncio.create_task(self._tell_gauges(), name=f"gauges-{self._name}"),
        ]
        self._events.on_ready(_READY)

    async def aclose(self, deadline: float) -> None:
        """Everything is answered already: close connections, whatever the time is."""
        self._is_closed = True
        tasks = [*self._running.values(), *self._background]
        for task in tasks:
            task.cancel()
        if tasks:
            await asyncio.wait(tasks, timeout=_CLOSE_S)
        if self._session is not None:
            await self._session.close()

    # --- prompts

    def _fill(self) -> None:
        now = asyncio.get_running_loop().time()
        while self.can_send and len(self._running) < self._config.max_concurrent_requests:
            submit = self._waiting.take(now)
            if submit is None:
                return
            self._meter.note_start(submit, now)
            task = asyncio.create_task(
                self._run(submit), name=f"upstream-{self._name}-{submit.key}"
            )
            self._running[submit.key] = task
            task.add_done_callback(functools.partial(self._on_end, submit.key))

    def _cancel(self, key: int) -> None:
        if not self._waiting.remove(key) and key in self._running:
            self._running[key].cancel()

    def _on_end(self, key: int, _: asyncio.Task[None]) -> None:
        """Also of a task that was cancelled before its first step."""
        del self._running[key]
        self._calls.pop(key, None)
        self._meter.note_end(key, asyncio.get_running_loop().time())
        self._fill()

    async def _run(self, submit: Submit) -> None:
        """A task's whole life: every way it can end is told, except that it was cancelled."""
        assert self._session is not None
        key = submit.key

        def tell(text: str) -> None:
            self._meter.note_piece(key, asyncio.get_running_loop().time())
            self._tell(StepItem(key, (text,)))

        try:
            request = build_request(submit.payload, self._config)
            call = self._calls[key] = Call(self._session, self._config, request, tell)
            finish = await call.run()
            self._meter.note_finish(finish)
            self._tell(StepItem(key, (), finish))
        except EngineError as error:
            retry_after_s = error.retry_after_s or 0.0
            self._events.on_refused(Refused(key, error.code, error.detail, retry_after_s))
        except Misconfigured as error:
            self._refuse_internally(key, str(error))
        except Exception:  # a fault of ours must not leave its caller without an answer
            logger.exception("%s: a call to the upstream server failed", self._name)
            self._refuse_internally(key, "see the traceback above")

    def _tell(self, item: StepItem) -> None:
        self._events.on_step(Step(0, self._meter.steps, (item,)))

    def _refuse_internally(self, key: int, detail: str) -> None:
        error = InternalError()
        logger.error("%s: reference %s: %s", self._name, error.reference, detail)
        self._events.on_refused(Refused(key, error.code, error.reference))

    async def _tell_gauges(self) -> None:
        while True:
            await asyncio.sleep(_GAUGE_INTERVAL_S)
            self._events.on_gauges(self._meter.gauges(len(self._running), len(self._waiting)))


def _open_session(config: UpstreamConfig) -> aiohttp.ClientSession:
    headers = {"Accept-Encoding": "identity"}  # a compressor would hold tokens back
    if config.api_key:
        headers["Authorization"] = f"Bearer {config.api_key}"
    return aiohttp.ClientSession(
        connector=aiohttp.TCPConnector(limit=config.max_concurrent_requests + 1),  # and the probe
        timeout=aiohttp.ClientTimeout(total=None, sock_connect=config.connect_timeout_s),
        cookie_jar=aiohttp.DummyCookieJar(),
        headers=headers,
    )
